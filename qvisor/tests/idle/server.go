// An HTTP server of Go: prints `ready` and its port.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

func main() {
	http.HandleFunc("/", func(answer http.ResponseWriter, request *http.Request) {
		switch request.URL.Path {
		case "/sleep":
			time.Sleep(6 * time.Second)
		case "/stream":
			io.WriteString(answer, "first")
			answer.(http.Flusher).Flush()
			time.Sleep(6 * time.Second)
		}
		io.WriteString(answer, "ok\n")
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Printf("ready\n%d\n", listener.Addr().(*net.TCPAddr).Port)
	panic(http.Serve(listener, nil))
}
