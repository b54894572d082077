//! The network that a container is in.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};

use serde_json::json;

use super::world::{World, both};

/// Counts the lines of these ports in the tables, and of those the ones of a socket that the container knows.
fn script(listening: u16, bound: u16, own: u16) -> String {
    format!(
        "nc -l -p {own} & while ! grep -qi :{own:04X} /proc/net/tcp6 /proc/net/tcp; do sleep 0.02; done; \
         grep -c ': 0100007F:{listening:04X} 00000000:0000 0A' /proc/net/tcp; \
         grep -c ': 0100007F:{bound:04X} 00000000:0000 07' /proc/net/udp; \
         cat /proc/net/tcp /proc/net/tcp6 | grep -c ':{own:04X} 0*:0000 0A'; \
         ls -l /proc/$!/fd | grep -q \"socket:.$(cat /proc/net/tcp /proc/net/tcp6 | grep ':{own:04X} 0*:0000 0A' | \
         while read a b c d e f g h i inode rest; do echo $inode; done)\" && echo known; kill $!"
    )
}

fn on_the_hosts_network(world: &mut World) {
    let all = world.config["linux"]["namespaces"].as_array_mut().unwrap();
    all.retain(|namespace| namespace["type"] != "network");
}

#[test]
fn the_networks_sockets_are_seen_whosesoever_they_are() {
    both(|world| {
        let listening = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let bound = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let own = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap().local_addr().unwrap().port();
        let (listening, bound) = (&listening.local_addr().unwrap(), &bound.local_addr().unwrap());
        world.script(&script(listening.port(), bound.port(), own));
        assert_eq!(world.output(), "0\n0\n1\nknown\n", "{:?}: in a network of its own", world.runtime);
        on_the_hosts_network(world);
        world.set("/hostname", json!("a-name"));
        assert_eq!(world.output(), "1\n1\n1\nknown\n", "{:?}: in the host's", world.runtime);
    });
}
