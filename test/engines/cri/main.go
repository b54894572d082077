// A small client of the container runtime interface (CRI).
//
//	cri methods                     the calls of the runtime service, one a line
//	cri call SOCKET METHOD          one call: its request is read as JSON, its answer is written as JSON
//	cri stream [OPTION]... URL      the streams of an Exec or Attach, whose answer has the URL, with this program's
//	cri forward URL PORT            one connection to a port, by the URL in the answer of PortForward
//
// A call that fails ends with 1, and writes the code's name and the message of the error. `stream` ends as the command does.
package main

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"time"

	"github.com/gogo/protobuf/jsonpb"
	"github.com/gogo/protobuf/proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// How long a call may take.
const patience = 4 * time.Minute

var service = reflect.TypeOf((*cri.RuntimeServiceClient)(nil)).Elem()

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func run(words []string) (int, error) {
	switch {
	case len(words) == 1 && words[0] == "methods":
		for i := 0; i < service.NumMethod(); i++ {
			fmt.Println(service.Method(i).Name)
		}
		return 0, nil
	case len(words) == 3 && words[0] == "call":
		if err := call(words[1], words[2]); err != nil {
			return 1, fmt.Errorf("%s: %s", status.Code(err), status.Convert(err).Message())
		}
		return 0, nil
	case len(words) >= 2 && words[0] == "stream":
		return stream(words[1:])
	case len(words) == 3 && words[0] == "forward":
		if err := forward(words[1], words[2]); err != nil {
			return 1, err
		}
		return 0, nil
	}
	return 2, fmt.Errorf("usage: cri methods | call SOCKET METHOD | stream [OPTION]... URL | forward URL PORT")
}

// call makes one call. The methods of the generated client say what type the request has.
func call(socket, name string) error {
	method, ok := service.MethodByName(name)
	if !ok {
		return fmt.Errorf("the runtime service has no call %s", name)
	}
	request := reflect.New(method.Type.In(1).Elem())
	if err := jsonpb.Unmarshal(os.Stdin, request.Interface().(proto.Message)); err != nil {
		return fmt.Errorf("the request of %s: %w", name, err)
	}
	connection, err := grpc.Dial("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(32<<20)))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client := reflect.ValueOf(cri.NewRuntimeServiceClient(connection))
	answers := client.MethodByName(name).Call([]reflect.Value{reflect.ValueOf(ctx), request})
	if err, _ := answers[1].Interface().(error); err != nil {
		return err
	}
	answer, err := first(answers[0].Interface())
	if err != nil {
		return err
	}
	return (&jsonpb.Marshaler{OrigName: true, EmitDefaults: true}).Marshal(os.Stdout, answer)
}

// first is the answer itself, or the first one of a call that answers again and again.
func first(answer interface{}) (proto.Message, error) {
	if events, ok := answer.(cri.RuntimeService_GetContainerEventsClient); ok {
		return events.Recv()
	}
	return answer.(proto.Message), nil
}
