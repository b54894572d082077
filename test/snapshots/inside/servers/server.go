package main

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

func main() {
	nonce := rand.Text()
	var asked, ticks atomic.Int64
	go func() {
		for range time.Tick(10 * time.Millisecond) {
			ticks.Add(1)
		}
	}()
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		for before := ticks.Load(); ticks.Load() == before; {
			time.Sleep(5 * time.Millisecond)
		}
		fmt.Fprintf(w, "%s %d", nonce, asked.Add(1))
	})
	panic(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
