// An HTTP server of the JDK, with a pool of threads: prints `ready` and its port.
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;

public class Server {
    public static void main(String[] arguments) throws Exception {
        var server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.createContext("/", exchange -> {
            try {
                var path = exchange.getRequestURI().getPath();
                var body = exchange.getResponseBody();
                if (path.equals("/sleep")) Thread.sleep(6000);
                exchange.sendResponseHeaders(200, 0);
                if (path.equals("/stream")) {
                    body.write("first".getBytes());
                    body.flush();
                    Thread.sleep(6000);
                }
                body.write("ok\n".getBytes());
                body.close();
            } catch (InterruptedException error) {
                throw new RuntimeException(error);
            }
        });
        server.start();
        System.out.println("ready\n" + server.getAddress().getPort());
    }
}
