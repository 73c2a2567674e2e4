package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
)

// What kube-scheduler pays on its side of each call (decision 0060): its HTTPExtender
// writes with json.Marshal and reads with a json.Decoder. Run `go test -bench .` here.
const nodes = 500

func names() []string {
	var all []string
	for i := range nodes {
		all = append(all, fmt.Sprintf("node-%05d", i))
	}
	return all
}

func read[T any](b *testing.B, answer any) {
	text, err := json.Marshal(answer)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		var found T
		if err := json.NewDecoder(bytes.NewReader(text)).Decode(&found); err != nil {
			b.Fatal(err)
		}
	}
}

func scores(count int) []hostPriority {
	var all []hostPriority
	for i, name := range names()[:count] {
		all = append(all, hostPriority{name, int64(i % 11)})
	}
	return all
}

func BenchmarkRead500Scores(b *testing.B) { read[[]hostPriority](b, scores(nodes)) }

func BenchmarkRead10Scores(b *testing.B) { read[[]hostPriority](b, scores(10)) }

func BenchmarkRead500NamesOfFilter(b *testing.B) {
	read[filterResult](b, filterResult{NodeNames: names()})
}

func BenchmarkWrite500Names(b *testing.B) {
	asked := extenderArgs{names()}
	for b.Loop() {
		if _, err := json.Marshal(asked); err != nil {
			b.Fatal(err)
		}
	}
}
