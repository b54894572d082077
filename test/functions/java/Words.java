import java.io.IOException;
import java.util.Arrays;
import java.util.Map;
import java.util.function.Function;
import java.util.function.IntSupplier;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/** Counts the words of a text. */
final class Words {
    private Words() {
    }

    private static String answer(int seed) {
        IntSupplier draw = Serve.numbers(seed);
        String text = IntStream.range(0, 3000 + seed % 8 * 1500).mapToObj(at -> "Word" + draw.getAsInt() % 700)
            .collect(Collectors.joining(" "));
        Map<String, Long> counts = Arrays.stream(text.split(" "))
            .map(String::toLowerCase).collect(Collectors.groupingBy(Function.identity(), Collectors.counting()));
        long most = counts.values().stream().mapToLong(Long::longValue).max().orElse(0);
        String first = counts.entrySet().stream().filter(entry -> entry.getValue() == most).map(Map.Entry::getKey).sorted()
            .findFirst().orElse("");
        return String.format("{\"words\": %d, \"most\": %d, \"first\": \"%s\"}", counts.size(), most, first);
    }

    public static void main(String[] arguments) throws IOException {
        Serve.serve(arguments, Words::answer);
    }
}
