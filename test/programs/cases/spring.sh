# needs: java curl /made/spring.jar
# timeout: 200
# options: --memory 3G
. /programs/common.sh
java -jar /made/spring.jar --server.port=28087 >log 2>&1 & server=$!
until_served 28087 100
get 'localhost:28087/sum?n=1000'; echo
at_once 200 'get "localhost:28087/sum?n=$((i % 3))"'
midst
get 'localhost:28087/sum?n=1000000'; echo
get -o /dev/null -w '%{http_code}\n' localhost:28087/none
ends spring $server
for gc in Serial Parallel G1 Z; do java -XX:+Use${gc}GC -Xmx256m -version >/dev/null 2>&1; echo "$gc $?"; done
cat >T.java <<'P'
import java.util.*; import java.util.concurrent.*; import java.nio.file.*; import java.nio.channels.*; import java.nio.*;
public class T {
  public static void main(String[] a) throws Exception {
    ExecutorService e = Executors.newFixedThreadPool(16); List<Future<Long>> l = new ArrayList<>();
    for (int i = 0; i < 200; i++) { int k = i; l.add(e.submit(() -> { long s = 0; List<byte[]> g = new ArrayList<>(); for (int j = 0; j < 200; j++) { g.add(new byte[10000]); s += j * k; } return s; })); }
    long t = 0; for (Future<Long> f : l) t += f.get(); e.shutdown(); System.out.println(t);
    Path p = Files.createTempFile("x", "y"); try (FileChannel c = FileChannel.open(p, StandardOpenOption.READ, StandardOpenOption.WRITE)) { MappedByteBuffer m = c.map(FileChannel.MapMode.READ_WRITE, 0, 1 << 20); m.putInt(4096, 42); m.force(); System.out.println(c.size() + " " + (c.lock() != null)); }
    System.out.println(new ProcessBuilder("sh", "-c", "exit 5").start().waitFor());
    Object o = null; try { o.hashCode(); } catch (NullPointerException x) { System.out.println("null"); }
    try { deep(0); } catch (StackOverflowError x) { System.out.println("deep"); }
    try { List<long[]> g = new ArrayList<>(); while (true) g.add(new long[1 << 20]); } catch (OutOfMemoryError x) { System.out.println("full"); }
    Runtime.getRuntime().addShutdownHook(new Thread(() -> System.out.println("hook")));
    System.out.println(ProcessHandle.current().info().command().isPresent());
  }
  static int deep(int i) { return deep(i + 1) + 1; }
}
P
javac T.java && java -Xmx64m T
java -Xmx64m -XX:+UseZGC T | tail -n 1
