// Reads a JSON list of objects and writes a list of what the Go types of this Kubernetes say of
// each: why they do not take it, or since when its API is deprecated and removed.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"

	crds "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
)

type deprecated interface{ APILifecycleDeprecated() (int, int) }
type removed interface{ APILifecycleRemoved() (int, int) }

type Verdict struct {
	Error      string `json:"error"`
	Deprecated string `json:"deprecated"`
	Removed    string `json:"removed"`
}

func main() {
	if err := crds.AddToScheme(scheme.Scheme); err != nil {
		log.Fatal(err)
	}
	var objects []json.RawMessage
	if err := json.NewDecoder(os.Stdin).Decode(&objects); err != nil {
		log.Fatal(err)
	}
	codecs := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict)
	decoder := codecs.UniversalDeserializer()
	verdicts := make([]Verdict, len(objects))
	for i, raw := range objects {
		object, _, err := decoder.Decode(raw, nil, nil)
		if err != nil {
			verdicts[i].Error = err.Error()
		}
		if api, ok := object.(deprecated); ok {
			verdicts[i].Deprecated = version(api.APILifecycleDeprecated())
		}
		if api, ok := object.(removed); ok {
			verdicts[i].Removed = version(api.APILifecycleRemoved())
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(verdicts); err != nil {
		log.Fatal(err)
	}
}

func version(major, minor int) string {
	return fmt.Sprintf("%d.%d", major, minor)
}
