// goextender answers kube-scheduler's calls with nothing behind them: filter gives all
// names back, prioritize zeros, and bind posts the Binding with an annotation. It is
// what an extender in Go costs at least: it watches nothing, keeps nothing, and does not
// read the pod.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
)

// Their keys are kube-scheduler's: k8s.io/kube-scheduler/extender/v1, types.go.
type extenderArgs struct{ NodeNames []string }

type filterResult struct {
	Nodes                      *struct{}
	NodeNames                  []string
	FailedNodes                map[string]string
	FailedAndUnresolvableNodes map[string]string
	Error                      string
}

type hostPriority struct {
	Host  string
	Score int64
}

type bindingArgs struct{ PodName, PodNamespace, PodUID, Node string }

type bindingResult struct{ Error string }

type object map[string]any

// What is fixed of the placement that the extender of gpushare writes.
const placement = `{"v":1,"uid":%q,"shares":[{"card":"GPU-%s-0","cores":10,"units":20,` +
	`"containers":{"main":[10,20]}}],"at":"2026-01-01T00:00:00.000Z"}`

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "host:port of the verbs")
	kubeconfig := flag.String("kubeconfig", "", "file in JSON; without it bind fails")
	flag.Parse()
	server := &apiServer{}
	if *kubeconfig != "" {
		server = connect(*kubeconfig)
	}
	http.HandleFunc("POST /scheduler/filter", verb(filter))
	http.HandleFunc("POST /scheduler/prioritize", verb(prioritize))
	http.HandleFunc("POST /scheduler/bind", verb(server.bind))
	log.Fatal(http.ListenAndServe(*listen, nil))
}

// must gives the value; an error ends a request, or the program at its start.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func verb[Args any](answer func(Args) any) http.HandlerFunc {
	return func(writer http.ResponseWriter, request *http.Request) {
		var args Args
		if err := json.NewDecoder(request.Body).Decode(&args); err != nil {
			http.Error(writer, err.Error(), http.StatusBadRequest)
			return
		}
		body := must(json.Marshal(answer(args)))
		writer.Header().Set("Content-Type", "application/json")
		// Else a long answer goes in chunks, which the bench's client does not read.
		writer.Header().Set("Content-Length", strconv.Itoa(len(body)))
		writer.Write(body)
	}
}

func filter(args extenderArgs) any {
	none := map[string]string{}
	return filterResult{nil, args.NodeNames, none, none, ""}
}

func prioritize(args extenderArgs) any {
	scores := make([]hostPriority, len(args.NodeNames))
	for i, name := range args.NodeNames {
		scores[i].Host = name
	}
	return scores
}

type apiServer struct {
	url, token string
	client     *http.Client
}

func connect(kubeconfig string) *apiServer {
	var config struct {
		Clusters []struct {
			Cluster struct {
				Server      string
				Certificate string `json:"certificate-authority"`
			}
		}
		Users []struct{ User struct{ Token string } }
	}
	if err := json.Unmarshal(must(os.ReadFile(kubeconfig)), &config); err != nil {
		log.Fatal(err)
	}
	cluster, trusted := config.Clusters[0].Cluster, x509.NewCertPool()
	trusted.AppendCertsFromPEM(must(os.ReadFile(cluster.Certificate)))
	// HTTP/2 as client-go has it: all binds share one kept connection.
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: trusted},
		ForceAttemptHTTP2: true,
	}}
	return &apiServer{cluster.Server, config.Users[0].User.Token, client}
}

func (s *apiServer) bind(args bindingArgs) any {
	if err := s.post(args); err != nil {
		return bindingResult{err.Error()}
	}
	return bindingResult{}
}

func (s *apiServer) post(args bindingArgs) error {
	if s.client == nil {
		return fmt.Errorf("started without -kubeconfig")
	}
	body := must(json.Marshal(object{
		"apiVersion": "v1",
		"kind":       "Binding",
		"metadata": object{
			"name": args.PodName, "namespace": args.PodNamespace, "uid": args.PodUID,
			"annotations": object{
				"baidu.com/vcuda-placement": fmt.Sprintf(placement, args.PodUID, args.Node),
			},
		},
		"target": object{"apiVersion": "v1", "kind": "Node", "name": args.Node},
	}))
	path := "/api/v1/namespaces/" + args.PodNamespace + "/pods/" + args.PodName + "/binding"
	request := must(http.NewRequest("POST", s.url+path, bytes.NewReader(body)))
	request.Header.Set("Authorization", "Bearer "+s.token)
	request.Header.Set("Content-Type", "application/json")
	response, err := s.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	said, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusCreated {
		err = fmt.Errorf("%s: %s", response.Status, said)
	}
	return err
}
