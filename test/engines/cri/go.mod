module dormouse/test/engines/cri

go 1.19

require (
	github.com/gogo/protobuf v1.3.2
	github.com/moby/spdystream v0.4.0
	google.golang.org/grpc v1.58.3
	k8s.io/cri-api v0.26.15
)

require (
	github.com/golang/protobuf v1.5.4 // indirect
	golang.org/x/net v0.17.0 // indirect
	golang.org/x/sys v0.13.0 // indirect
	golang.org/x/text v0.13.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20230711160842-782d3b101e98 // indirect
	google.golang.org/protobuf v1.33.0 // indirect
)
