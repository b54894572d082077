# needs: ocaml sbcl guile swipl elixir lua5.4 luajit tclsh gfortran mcs fpc ghc nasm pypy3 clojure
# timeout: 300
# options: --memory 3G
. /programs/common.sh
said() { timeout 100 "$@" 2>err; local c=$?; [ $c = 0 ] || { echo "$1: $c"; head -n 5 err; }; }
echo 'let rec f n = if n < 2 then n else f (n-1) + f (n-2) let () = Printf.printf "%d\n" (f 25)' >t.ml
said ocaml t.ml; said ocamlopt -I +unix unix.cmxa t.ml -o ml 2>/dev/null && said ./ml
said sbcl --noinform --non-interactive --eval '(progn (defun f (n) (if (< n 2) n (+ (f (- n 1)) (f (- n 2))))) (print (f 25)) (sb-ext:gc :full t) (print (sb-thread:join-thread (sb-thread:make-thread (lambda () (f 20))))))'; echo
said sbcl --noinform --non-interactive --eval '(handler-case (labels ((f (n) (+ 1 (f n)))) (f 1)) (storage-condition () (print :deep)))'; echo
said guile --no-auto-compile -c '(use-modules (ice-9 threads)) (display (apply + (par-map (lambda (x) (* x x)) (iota 100)))) (newline)'
said swipl -g "thread_create((numlist(1,1000,L),sum_list(L,S),writeln(S)),T),thread_join(T),halt"
said elixir -e '1..200 |> Enum.map(fn x -> Task.async(fn -> Process.sleep(10); x * x end) end) |> Enum.map(&Task.await/1) |> Enum.sum() |> IO.puts()'
said lua5.4 -e 'local t = {} for i = 1, 1e5 do t[i] = ("x"):rep(i % 50) end print(#table.concat(t))'
said luajit -e 'local s = 0 for i = 1, 1e7 do s = s + i % 7 end print(s)'
echo 'set s [socket -server {apply {{c a p} {puts $c "hi"; close $c}}} 0]; set p [lindex [fconfigure $s -sockname] 2]; set c [socket 127.0.0.1 $p]; fileevent $c readable {puts [gets $c]; exit}; vwait forever' >t.tcl
said tclsh t.tcl
printf 'program t\n integer(8) :: i, s\n s = 0\n!$omp parallel do reduction(+:s)\n do i = 1, 1000000\n s = s + mod(i, 7_8)\n end do\n print *, s\nend\n' >t.f90
said gfortran -fopenmp -o f t.f90 && said ./f
echo 'using System; using System.Threading.Tasks; using System.Linq; class T { static void Main() { Console.WriteLine(Enumerable.Range(0, 100).AsParallel().Select(x => x * x).Sum()); try { object o = null; o.ToString(); } catch (NullReferenceException) { Console.WriteLine("null"); } for (int i = 0; i < 100; i++) { var b = new byte[1000000]; } GC.Collect(); var t = Task.Run(async () => { await Task.Delay(20); return 7; }); Console.WriteLine(t.Result); } }' >t.cs
said mcs t.cs && said mono t.exe
midst
echo "program t; var i: longint; begin for i := 1 to 3 do writeln(i * i); end." >t.pas
said fpc t.pas >/dev/null && ./t
echo 'import Control.Concurrent
import Control.Monad
main = do { m <- newEmptyMVar; forM_ [1..1000] (\i -> forkIO (threadDelay 1000 >> putMVar m i)); s <- replicateM 1000 (takeMVar m); print (sum (s :: [Int])) }' >H.hs
said ghc -threaded -O0 H.hs -o h >/dev/null && said ./h +RTS -N2
said runghc H.hs
printf 'section .text\nglobal _start\n_start: mov eax,1\nmov edi,1\nmov rsi,m\nmov edx,3\nsyscall\nmov eax,60\nmov edi,4\nsyscall\nsection .data\nm: db "hi",10,0\n' >t.asm
nasm -felf64 t.asm -o t.o && ld -o asm t.o && ./asm; echo $?
said pypy3 -c 'import threading, subprocess; t = [threading.Thread(target=lambda: sum(range(10**6))) for _ in range(4)]; [x.start() for x in t]; [x.join() for x in t]; print(subprocess.check_output(["echo", "sub"]))'
said clojure -e '(println (reduce + (pmap #(* % %) (range 100))))'
