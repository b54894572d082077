import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.IntSupplier;

/** Parses JSON, and sums up what it holds. */
final class JsonRows {
    private final String text;
    private int at;

    private JsonRows(String text) {
        this.text = text;
    }

    private static String textOf(int seed) {
        IntSupplier draw = Serve.numbers(seed);
        StringBuilder text = new StringBuilder("[");
        for (int row = 0; row < 400 + seed % 7 * 200; row++) {
            text.append(row == 0 ? "" : ", ").append("{\"id\": ").append(row)
                .append(", \"shop\": \"s").append(draw.getAsInt() % 20)
                .append("\", \"prices\": [").append(draw.getAsInt()).append(", ").append(draw.getAsInt()).append("]}");
        }
        return text.append("]").toString();
    }

    private char next() {
        while (Character.isWhitespace(text.charAt(at))) {
            at++;
        }
        return text.charAt(at);
    }

    private void expect(char wanted) {
        if (next() != wanted) {
            throw new IllegalStateException("no " + wanted + " at " + at);
        }
        at++;
    }

    private Object value() {
        return switch (next()) {
            case '{' -> object();
            case '[' -> array();
            case '"' -> string();
            default -> number();
        };
    }

    private Map<String, Object> object() {
        Map<String, Object> found = new LinkedHashMap<>();
        expect('{');
        while (next() != '}') {
            String key = string();
            expect(':');
            found.put(key, value());
            if (next() == ',') {
                at++;
            }
        }
        expect('}');
        return found;
    }

    private List<Object> array() {
        List<Object> found = new ArrayList<>();
        expect('[');
        while (next() != ']') {
            found.add(value());
            if (next() == ',') {
                at++;
            }
        }
        expect(']');
        return found;
    }

    private String string() {
        expect('"');
        int end = text.indexOf('"', at);
        String found = text.substring(at, end);
        at = end + 1;
        return found;
    }

    private Long number() {
        int start = at;
        while (Character.isDigit(text.charAt(at))) {
            at++;
        }
        return Long.valueOf(text.substring(start, at));
    }

    @SuppressWarnings("unchecked")
    private static String answer(int seed) {
        Map<String, Long> sums = new TreeMap<>();
        for (Object row : (List<Object>) new JsonRows(textOf(seed)).value()) {
            Map<String, Object> fields = (Map<String, Object>) row;
            for (Object price : (List<Object>) fields.get("prices")) {
                sums.merge((String) fields.get("shop"), (Long) price, Long::sum);
            }
        }
        StringBuilder text = new StringBuilder();
        sums.forEach((shop, sum) -> text.append(text.isEmpty() ? "{" : ", ").append("\"" + shop + "\": " + sum));
        return text.append("}").toString();
    }

    public static void main(String[] arguments) throws IOException {
        Serve.serve(arguments, JsonRows::answer);
    }
}
