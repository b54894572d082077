// A small client of the container runtime interface: takes one pod through its life, and says at each step whether
// things are as they should be.
//
//	cri -socket PATH -handler NAME -image NAME -logs DIR [-network]
//
// One line a step, "ok NAME" or "FAILED NAME: why". With -network the pod has a network of its own.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// How long something may take to come about.
const patience = 30 * time.Second

type client struct {
	cri.RuntimeServiceClient
	ctx                  context.Context
	handler, image, logs string
	network              bool
	failed               bool
	pod                  string
	config               *cri.PodSandboxConfig
	namespaces           *cri.NamespaceOption
}

func main() {
	socket := flag.String("socket", "", "containerd's socket")
	c := &client{}
	flag.StringVar(&c.handler, "handler", "", "the runtime's name in containerd's configuration")
	flag.StringVar(&c.image, "image", "", "an image with a shell")
	flag.StringVar(&c.logs, "logs", "", "directory for logs")
	flag.BoolVar(&c.network, "network", false, "a network of the pod's own")
	flag.Parse()
	connection, err := grpc.Dial("unix://"+*socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println("FAILED connect:", err)
		os.Exit(1)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	c.RuntimeServiceClient, c.ctx = cri.NewRuntimeServiceClient(connection), ctx
	c.life()
	if c.failed {
		os.Exit(1)
	}
}

// step says how something went; result: whether it went well.
func (c *client) step(name string, err error) bool {
	if err != nil {
		c.failed = true
		fmt.Printf("FAILED %s: %s\n", name, strings.Join(strings.Fields(err.Error()), " "))
		return false
	}
	fmt.Println("ok", name)
	return true
}

func (c *client) life() {
	network := cri.NamespaceMode_NODE
	if c.network {
		network = cri.NamespaceMode_POD
	}
	name := fmt.Sprintf("pod-%s-%d", c.handler, os.Getpid())
	c.config = &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Uid: name, Namespace: "test"},
		LogDirectory: c.logs,
		Linux: &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Network: network, Pid: cri.NamespaceMode_CONTAINER},
		}},
	}
	c.namespaces = c.config.Linux.SecurityContext.NamespaceOptions
	pod, err := c.RunPodSandbox(c.ctx, &cri.RunPodSandboxRequest{Config: c.config, RuntimeHandler: c.handler})
	if !c.step("RunPodSandbox", err) {
		return
	}
	c.pod = pod.PodSandboxId
	c.step("PodSandboxStatus", c.ready())
	c.containers()
	_, err = c.StopPodSandbox(c.ctx, &cri.StopPodSandboxRequest{PodSandboxId: c.pod})
	c.step("StopPodSandbox", err)
	_, err = c.RemovePodSandbox(c.ctx, &cri.RemovePodSandboxRequest{PodSandboxId: c.pod})
	c.step("RemovePodSandbox", err)
	list, err := c.ListPodSandbox(c.ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{Id: c.pod}})
	if err == nil && len(list.Items) > 0 {
		err = fmt.Errorf("%d are left", len(list.Items))
	}
	c.step("ListPodSandbox", err)
}

func (c *client) ready() error {
	status, err := c.PodSandboxStatus(c.ctx, &cri.PodSandboxStatusRequest{PodSandboxId: c.pod})
	if err != nil {
		return err
	}
	if status.Status.State != cri.PodSandboxState_SANDBOX_READY {
		return fmt.Errorf("it is %s", status.Status.State)
	}
	if c.network && status.Status.GetNetwork().GetIp() == "" {
		return fmt.Errorf("it has no address")
	}
	return nil
}

// create makes a container of a shell command; result: its ID.
func (c *client) create(name, command string, resources *cri.LinuxContainerResources) (string, error) {
	config := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name},
		Image:    &cri.ImageSpec{Image: c.image},
		Command:  []string{"sh", "-c", command},
		LogPath:  name + ".log",
		Linux: &cri.LinuxContainerConfig{
			Resources: resources,
			// As the kubelet asks for it, unless processes are to be shared.
			SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: c.namespaces},
		},
	}
	request := &cri.CreateContainerRequest{PodSandboxId: c.pod, Config: config, SandboxConfig: c.config}
	created, err := c.CreateContainer(c.ctx, request)
	if err != nil {
		return "", err
	}
	return created.ContainerId, nil
}

func (c *client) status(id string) (*cri.ContainerStatus, error) {
	answer, err := c.ContainerStatus(c.ctx, &cri.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return nil, err
	}
	return answer.Status, nil
}

// becomes waits until a container is in a state.
func (c *client) becomes(id string, state cri.ContainerState) (*cri.ContainerStatus, error) {
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		status, err := c.status(id)
		if err != nil || status.State == state {
			return status, err
		}
		if time.Since(start) > patience {
			return nil, fmt.Errorf("it is %s", status.State)
		}
	}
}

func (c *client) containers() {
	resources := &cri.LinuxContainerResources{MemoryLimitInBytes: 128 << 20, CpuShares: 512}
	server, err := c.create("server", "echo started; echo oops >&2; trap 'exit 6' TERM; while :; do sleep 0.1; done", resources)
	if !c.step("CreateContainer", err) {
		return
	}
	_, err = c.StartContainer(c.ctx, &cri.StartContainerRequest{ContainerId: server})
	if !c.step("StartContainer", err) {
		return
	}
	_, err = c.becomes(server, cri.ContainerState_CONTAINER_RUNNING)
	c.step("ContainerStatus", err)
	c.step("ExecSync", c.exec(server))
	c.step("ExecSync of what is missing", c.execMissing(server))
	c.step("ContainerStats", c.stats(server))
	update := &cri.LinuxContainerResources{MemoryLimitInBytes: 256 << 20}
	_, err = c.UpdateContainerResources(c.ctx, &cri.UpdateContainerResourcesRequest{ContainerId: server, Linux: update})
	c.step("UpdateContainerResources", err)
	c.step("a container that ends", c.short())
	c.step("its log", c.log("server.log", "stdout F started", "stderr F oops"))
	_, err = c.StopContainer(c.ctx, &cri.StopContainerRequest{ContainerId: server, Timeout: 20})
	c.step("StopContainer", err)
	ended, err := c.becomes(server, cri.ContainerState_CONTAINER_EXITED)
	if err == nil && ended.ExitCode != 6 {
		err = fmt.Errorf("its exit code is %d (%s)", ended.ExitCode, ended.Reason)
	}
	c.step("its exit code", err)
	_, err = c.StopContainer(c.ctx, &cri.StopContainerRequest{ContainerId: server})
	c.step("StopContainer again", err)
	_, err = c.RemoveContainer(c.ctx, &cri.RemoveContainerRequest{ContainerId: server})
	c.step("RemoveContainer", err)
	if _, err = c.status(server); err == nil {
		err = fmt.Errorf("it is still there")
	} else {
		err = nil
	}
	c.step("ContainerStatus of what is removed", err)
	c.step("a container that does not hear", c.deaf())
	c.step("a container that is killed for its memory", c.greedy())
}

func (c *client) exec(id string) error {
	done, err := c.ExecSync(c.ctx, &cri.ExecSyncRequest{
		ContainerId: id, Cmd: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}, Timeout: 20,
	})
	if err != nil {
		return err
	}
	if string(done.Stdout) != "out\n" || string(done.Stderr) != "err\n" || done.ExitCode != 3 {
		return fmt.Errorf("%q, %q, exit code %d", done.Stdout, done.Stderr, done.ExitCode)
	}
	return nil
}

func (c *client) execMissing(id string) error {
	done, err := c.ExecSync(c.ctx, &cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"/no/such/program"}, Timeout: 20})
	if err == nil {
		return fmt.Errorf("it ended with %d", done.ExitCode)
	}
	return nil
}

func (c *client) stats(id string) error {
	// The plugin collects them every ten seconds, and by then the container was at work.
	for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		answer, err := c.ContainerStats(c.ctx, &cri.ContainerStatsRequest{ContainerId: id})
		if err == nil && answer.Stats.GetMemory().GetWorkingSetBytes().GetValue() > 0 &&
			answer.Stats.GetCpu().GetUsageCoreNanoSeconds().GetValue() > 0 {
			return nil
		}
		if time.Since(start) > patience {
			return fmt.Errorf("they are %v, %v", answer, err)
		}
	}
}

func (c *client) short() error {
	id, err := c.create("short", "echo short; exit 4", nil)
	if err != nil {
		return err
	}
	if _, err = c.StartContainer(c.ctx, &cri.StartContainerRequest{ContainerId: id}); err != nil {
		return err
	}
	ended, err := c.becomes(id, cri.ContainerState_CONTAINER_EXITED)
	if err != nil {
		return err
	}
	if ended.ExitCode != 4 || ended.Reason != "Error" {
		return fmt.Errorf("it ended with %d, %s", ended.ExitCode, ended.Reason)
	}
	if err = c.log("short.log", "stdout F short"); err != nil {
		return err
	}
	_, err = c.RemoveContainer(c.ctx, &cri.RemoveContainerRequest{ContainerId: id})
	return err
}

// deaf stops a container that ignores the signal.
func (c *client) deaf() error {
	id, err := c.create("deaf", "trap '' TERM; while :; do sleep 1; done", nil)
	if err != nil {
		return err
	}
	if _, err = c.StartContainer(c.ctx, &cri.StartContainerRequest{ContainerId: id}); err != nil {
		return err
	}
	if _, err = c.StopContainer(c.ctx, &cri.StopContainerRequest{ContainerId: id, Timeout: 1}); err != nil {
		return err
	}
	ended, err := c.becomes(id, cri.ContainerState_CONTAINER_EXITED)
	if err == nil && ended.ExitCode != 137 {
		err = fmt.Errorf("its exit code is %d", ended.ExitCode)
	}
	return err
}

// greedy takes more memory than it may have.
func (c *client) greedy() error {
	// Not the first process: runc's shim may overlook what is told in the moment of the container's end.
	grow := "sh -c 'x=0123456789abcdef; while [ ${#x} -lt 1000000 ]; do x=$x$x; done; i=0; " +
		"while :; do eval v$i=$x; i=$((i+1)); done'; code=$?; sleep 2; exit $code"
	id, err := c.create("greedy", grow, &cri.LinuxContainerResources{MemoryLimitInBytes: 64 << 20})
	if err != nil {
		return err
	}
	if _, err = c.StartContainer(c.ctx, &cri.StartContainerRequest{ContainerId: id}); err != nil {
		return err
	}
	ended, err := c.becomes(id, cri.ContainerState_CONTAINER_EXITED)
	for start := time.Now(); err == nil && ended.Reason != "OOMKilled" && time.Since(start) < patience; {
		// The end and its cause are two events.
		time.Sleep(20 * time.Millisecond)
		ended, err = c.status(id)
	}
	if err == nil && (ended.ExitCode != 137 || ended.Reason != "OOMKilled") {
		err = fmt.Errorf("it ended with %d, %s", ended.ExitCode, ended.Reason)
	}
	return err
}

// log waits until a log has lines that contain the words.
func (c *client) log(name string, lines ...string) error {
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		text, err := os.ReadFile(filepath.Join(c.logs, name))
		missing := ""
		for _, line := range lines {
			if !strings.Contains(string(text), line+"\n") {
				missing = line
			}
		}
		if err == nil && missing == "" {
			return nil
		}
		if time.Since(start) > patience {
			return fmt.Errorf("%q is not in %q (%v)", missing, text, err)
		}
	}
}
