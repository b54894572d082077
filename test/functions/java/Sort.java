import java.io.IOException;
import java.util.Arrays;
import java.util.BitSet;
import java.util.function.IntSupplier;

/** Sorts numbers, and counts primes. */
final class Sort {
    private Sort() {
    }

    private static int primesBelow(int limit) {
        BitSet composite = new BitSet(limit);
        int count = 0;
        for (int number = 2; number < limit; number++) {
            if (!composite.get(number)) {
                count++;
                for (long multiple = (long) number * number; multiple < limit; multiple += number) {
                    composite.set((int) multiple);
                }
            }
        }
        return count;
    }

    private static String answer(int seed) {
        IntSupplier draw = Serve.numbers(seed);
        Integer[] numbers = new Integer[5000 + seed % 8 * 5000];
        Arrays.setAll(numbers, at -> draw.getAsInt() * 32768 + draw.getAsInt());
        Arrays.sort(numbers);
        int limit = 10000 + seed % 9 * 5000;
        return String.format("{\"least\": %d, \"middle\": %d, \"most\": %d, \"primes\": %d}", numbers[0],
            numbers[numbers.length / 2], numbers[numbers.length - 1], primesBelow(limit));
    }

    public static void main(String[] arguments) throws IOException {
        Serve.serve(arguments, Sort::answer);
    }
}
