# needs: go
# timeout: 240
. /programs/common.sh
export GOCACHE=$WORK/cache GOFLAGS=-mod=mod GOPATH=$WORK/path GOTOOLCHAIN=local GO111MODULE=on CGO_ENABLED=0
cat >go.mod <<'P'
module example.org/t

go 1.19
P
cat >main.go <<'P'
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
)

func main() {
	mux := http.NewServeMux()
	mux.HandleFunc("/sum", func(w http.ResponseWriter, r *http.Request) {
		var wait sync.WaitGroup
		var lock sync.Mutex
		sum := 0
		for i := 0; i < 100; i++ {
			wait.Add(1)
			go func(i int) {
				defer wait.Done()
				runtime.Gosched()
				lock.Lock()
				sum += i
				lock.Unlock()
			}(i)
		}
		wait.Wait()
		fmt.Fprintln(w, sum)
	})
	server := &http.Server{Addr: "127.0.0.1:28088", Handler: mux}
	done := make(chan struct{})
	go func() {
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGTERM)
		<-asked
		server.Shutdown(context.Background())
		close(done)
	}()
	fmt.Println(server.ListenAndServe())
	<-done
}
P
cat >main_test.go <<'P'
package main

import (
	"os"
	"os/exec"
	"testing"
)

func TestChild(t *testing.T) {
	out, err := exec.Command("sh", "-c", "echo hi").Output()
	if err != nil || string(out) != "hi\n" {
		t.Fatal(err)
	}
	if _, err := os.Stat(t.TempDir()); err != nil {
		t.Fatal(err)
	}
}
P
go build -o t . && ./t & server=$!
until_served 28088 150
get localhost:28088/sum
at_once 100 get localhost:28088/sum
midst
get localhost:28088/sum
pkill -TERM -x t; wait $server; echo "ended with $?"
go vet . && go test . | cut -f 1,2
