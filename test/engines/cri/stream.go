package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/moby/spdystream"
)

// upgraded is a connection after its upgrade: what the answer's reader has read too far comes first.
type upgraded struct {
	net.Conn
	reader *bufio.Reader
}

func (u upgraded) Read(data []byte) (int, error) { return u.reader.Read(data) }

// dial opens the connection of an URL that containerd gave, as kubelet's clients do: SPDY, with one stream for each kind.
func dial(address, protocol string) (*spdystream.Connection, error) {
	place, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	conn, err := net.Dial("tcp", place.Host)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequest("POST", address, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", "SPDY/3.1")
	request.Header.Set("X-Stream-Protocol-Version", protocol)
	if err := request.Write(conn); err != nil {
		return nil, err
	}
	reader := bufio.NewReader(conn)
	answer, err := http.ReadResponse(reader, request)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusSwitchingProtocols {
		why, _ := io.ReadAll(answer.Body)
		return nil, fmt.Errorf("%s: %s", answer.Status, why)
	}
	connection, err := spdystream.NewConnection(upgraded{conn, reader}, false)
	if err != nil {
		return nil, err
	}
	go connection.Serve(spdystream.NoOpStreamHandler)
	return connection, nil
}

// open makes a stream, and waits until the other side knows it.
func open(connection *spdystream.Connection, kind string, more ...string) (*spdystream.Stream, error) {
	headers := http.Header{"streamType": []string{kind}}
	for i := 0; i+1 < len(more); i += 2 {
		headers.Set(more[i], more[i+1])
	}
	stream, err := connection.CreateStream(headers, nil, false)
	if err != nil {
		return nil, err
	}
	return stream, stream.Wait()
}

// stream connects the streams of a command with this program's; result: how the command ended.
func stream(words []string) (int, error) {
	options := flag.NewFlagSet("stream", flag.ExitOnError)
	input := options.Bool("stdin", false, "pass standard input on")
	tty := options.Bool("tty", false, "the command has a terminal")
	sizes := options.String("sizes", "", "COLUMNSxROWS,…: sizes of the terminal; SIGUSR1 sets the next one")
	options.Parse(words)
	connection, err := dial(options.Arg(0), "v4.channel.k8s.io")
	if err != nil {
		return 1, err
	}
	defer connection.Close()
	failure, err := open(connection, "error")
	if err != nil {
		return 1, err
	}
	if *input {
		stdin, err := open(connection, "stdin")
		if err != nil {
			return 1, err
		}
		go func() {
			io.Copy(stdin, os.Stdin)
			stdin.Close()
		}()
	}
	var outputs sync.WaitGroup
	copies := map[string]io.Writer{"stdout": os.Stdout, "stderr": os.Stderr}
	if *tty {
		delete(copies, "stderr")
	}
	for kind, output := range copies {
		from, err := open(connection, kind)
		if err != nil {
			return 1, err
		}
		outputs.Add(1)
		go func(output io.Writer) {
			defer outputs.Done()
			io.Copy(output, from)
		}(output)
	}
	if *tty {
		resize, err := open(connection, "resize")
		if err != nil {
			return 1, err
		}
		go sendSizes(resize, strings.Split(*sizes, ","))
	}
	verdict, err := io.ReadAll(failure)
	outputs.Wait()
	if err != nil {
		return 1, err
	}
	return ending(verdict)
}

func sendSizes(resize io.Writer, sizes []string) {
	next := make(chan os.Signal, len(sizes))
	signal.Notify(next, syscall.SIGUSR1)
	for _, size := range sizes {
		var width, height uint16
		if _, err := fmt.Sscanf(size, "%dx%d", &width, &height); err == nil {
			json.NewEncoder(resize).Encode(map[string]uint16{"Width": width, "Height": height})
		}
		<-next
	}
}

// ending reads how a command ended, as Kubernetes says it.
func ending(verdict []byte) (int, error) {
	if len(verdict) == 0 {
		return 0, nil
	}
	var status struct {
		Status, Message string
		Details         struct {
			Causes []struct{ Reason, Message string }
		}
	}
	if err := json.Unmarshal(verdict, &status); err != nil {
		return 1, fmt.Errorf("%s: %w", verdict, err)
	}
	for _, cause := range status.Details.Causes {
		if cause.Reason == "ExitCode" {
			code, err := strconv.Atoi(cause.Message)
			return code, err
		}
	}
	if status.Status != "Success" {
		return 1, fmt.Errorf("%s", status.Message)
	}
	return 0, nil
}

// forward connects this program's standard streams with a port.
func forward(address, port string) error {
	connection, err := dial(address, "portforward.k8s.io")
	if err != nil {
		return err
	}
	defer connection.Close()
	failure, err := open(connection, "error", "port", port, "requestID", "0")
	if err != nil {
		return err
	}
	// Nothing is written to it.
	failure.Close()
	data, err := open(connection, "data", "port", port, "requestID", "0")
	if err != nil {
		return err
	}
	go func() {
		io.Copy(data, os.Stdin)
		data.Close()
	}()
	if _, err := io.Copy(os.Stdout, data); err != nil {
		return err
	}
	why, err := io.ReadAll(failure)
	if err == nil && len(why) > 0 {
		err = fmt.Errorf("%s", why)
	}
	return err
}
