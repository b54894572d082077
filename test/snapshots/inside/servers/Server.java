import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicLong;

class Server {
    public static void main(String[] arguments) throws Exception {
        var nonce = UUID.randomUUID().toString();
        var asked = new AtomicLong();
        var ticks = new AtomicLong();
        var timer = new Thread(() -> {
            while (true) {
                try {
                    Thread.sleep(10);
                } catch (InterruptedException end) {
                    return;
                }
                ticks.incrementAndGet();
            }
        });
        timer.setDaemon(true);
        timer.start();
        var server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])), 50);
        server.createContext("/", exchange -> {
            var garbage = new ArrayList<byte[]>();
            for (int number = 0; number < 500; number++) {
                garbage.add(new byte[4096]);
            }
            for (long before = ticks.get(); ticks.get() == before;) {
                Thread.yield();
            }
            var body = (nonce + " " + asked.incrementAndGet()).getBytes();
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.start();
    }
}
