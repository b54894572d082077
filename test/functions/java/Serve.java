import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.function.IntFunction;
import java.util.function.IntSupplier;

/** A function behind a web server. {@code GET /?seed=N} asks for the answer to the input that the seed makes. */
final class Serve {
    private Serve() {
    }

    /** The numbers that every function draws its input from, each below 32768; those of Python and Node are the same. */
    static IntSupplier numbers(int seed) {
        int[] state = {seed & 0x7fffffff};
        return () -> {
            state[0] = (state[0] * 1103515245 + 12345) & 0x7fffffff;
            return state[0] >> 16;
        };
    }

    static void serve(String[] arguments, IntFunction<String> answer) throws IOException {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])), 0);
        server.createContext("/", exchange -> {
            int seed = Integer.parseInt(exchange.getRequestURI().getQuery().substring("seed=".length()));
            byte[] body = answer.apply(seed).getBytes(StandardCharsets.UTF_8);
            exchange.getResponseHeaders().set("Content-Type", "application/json");
            exchange.getResponseHeaders().set("Connection", "close");
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.start();
    }
}
