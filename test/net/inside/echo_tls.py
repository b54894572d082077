"""A TLS server with a thread for each connection, which sends back what it gets: echo_tls.py PORT CERTIFICATE"""
import socket
import ssl
import sys
import threading


def serve(context, raw):
    try:
        with context.wrap_socket(raw, server_side=True) as connection:
            while data := connection.recv(65536):
                connection.sendall(data)
    except (OSError, ssl.SSLError):
        raw.close()


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2])
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=512)
while True:
    connection, _ = listener.accept()
    threading.Thread(target=serve, args=(context, connection), daemon=True).start()
