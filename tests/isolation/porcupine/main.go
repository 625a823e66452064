// Judges a history of transactions for strict serializability: porcupine looks for an order of all transactions, in
// which each takes effect at once between its call and its return, and reads what those before it have left.
//
//	isolation [-seconds 60] < history.json
//
// The history is a JSON array of transactions:
//
//	{"process": "w1", "call": 10, "return": 20, "pinned": false, "steps": [["r", "x", 1], ["w", "x", 2]]}
//
// "return" is null if nobody knows when, or if it took effect only later. A "pinned" one may have read an older state
// than that of its call, but no older one than a pinned one of its process before it. Steps are, in their order:
//
//	["r", key, value]              it read this value; null = there was none
//	["w", key, value]              it wrote this value; null = it deleted the key
//	["append", key, element]       it added to the end of a list
//	["all", prefix, {key: value}]  it read all keys with this prefix
//
// It prints {"result": "serializable" | "violation" | "unknown", "left": [...]}: unless there is an order, those of the
// transactions for which the longest one that was found has no place.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"os"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

type transaction struct {
	Process string              `json:"process"`
	Call    int64               `json:"call"`
	Return  *int64              `json:"return"`
	Pinned  bool                `json:"pinned"`
	Steps   [][]json.RawMessage `json:"steps"`
	place   int
	turn    int // among the pinned ones of its process
	steps   []step
}

type step struct {
	kind, key, value string
	all              map[string]string
}

// The state of the database: values by key in JSON form, and how far each process with pinned reads has come.
type state struct {
	values map[string]string
	pinned map[string]int
	digest uint64
}

const absent = "null"

func hash(key, value string) uint64 {
	sum := fnv.New64a()
	sum.Write([]byte(key))
	sum.Write([]byte{0})
	sum.Write([]byte(value))
	return sum.Sum64()
}

// Returns the state after a transaction, and whether it read what is there.
func apply(before state, one *transaction) (bool, state) {
	values, digest, copied := before.values, before.digest, false
	get := func(key string) string {
		if value, ok := values[key]; ok {
			return value
		}
		return absent
	}
	put := func(key, value string) {
		if !copied {
			values, copied = maps.Clone(values), true
		}
		if old, ok := values[key]; ok {
			digest -= hash(key, old)
			delete(values, key)
		}
		if value != absent {
			values[key] = value
			digest += hash(key, value)
		}
	}
	for _, each := range one.steps {
		switch each.kind {
		case "r":
			if get(each.key) != each.value {
				return false, before
			}
		case "w":
			put(each.key, each.value)
		case "append":
			if list := get(each.key); list == absent {
				put(each.key, "["+each.value+"]")
			} else {
				put(each.key, strings.TrimSuffix(list, "]")+","+each.value+"]")
			}
		case "all":
			found := 0
			for key, value := range values {
				if strings.HasPrefix(key, each.key) {
					if other, ok := each.all[key]; !ok || other != value {
						return false, before
					}
					found++
				}
			}
			if found != len(each.all) {
				return false, before
			}
		}
	}
	after := state{values, before.pinned, digest}
	if one.Pinned {
		if before.pinned[one.Process] != one.turn { // those of a process take effect in its order
			return false, before
		}
		after.pinned = maps.Clone(before.pinned)
		after.pinned[one.Process]++
	}
	return true, after
}

var model = porcupine.Model{
	Init: func() interface{} { return state{map[string]string{}, map[string]int{}, 0} },
	Step: func(before, input, _ interface{}) (bool, interface{}) {
		ok, after := apply(before.(state), input.(*transaction))
		return ok, after
	},
	Equal: func(one, other interface{}) bool {
		a, b := one.(state), other.(state)
		return a.digest == b.digest && maps.Equal(a.values, b.values) && maps.Equal(a.pinned, b.pinned)
	},
	Hash: func(one interface{}) uint64 { return one.(state).digest },
}

func compact(raw json.RawMessage) (string, error) {
	var value interface{}
	if err := json.Unmarshal(raw, &value); err != nil {
		return "", err
	}
	text, err := json.Marshal(value)
	return string(text), err
}

func parse(raw []json.RawMessage) (step, error) {
	var parsed step
	if len(raw) != 3 {
		return parsed, fmt.Errorf("a step has three parts, not %d", len(raw))
	}
	if err := json.Unmarshal(raw[0], &parsed.kind); err != nil {
		return parsed, err
	}
	if err := json.Unmarshal(raw[1], &parsed.key); err != nil {
		return parsed, err
	}
	var err error
	switch parsed.kind {
	case "r", "w", "append":
		parsed.value, err = compact(raw[2])
	case "all":
		var all map[string]json.RawMessage
		if err = json.Unmarshal(raw[2], &all); err == nil {
			parsed.all = map[string]string{}
			for key, value := range all {
				if parsed.all[parsed.key+key], err = compact(value); err != nil {
					break
				}
			}
		}
	default:
		err = fmt.Errorf("unknown step %q", parsed.kind)
	}
	return parsed, err
}

func read() ([]porcupine.Operation, error) {
	var history []*transaction
	if err := json.NewDecoder(os.Stdin).Decode(&history); err != nil {
		return nil, err
	}
	clients, turns := map[string]int{}, map[string]int{}
	operations := make([]porcupine.Operation, 0, len(history))
	for place, one := range history {
		one.place = place
		for _, raw := range one.Steps {
			parsed, err := parse(raw)
			if err != nil {
				return nil, err
			}
			one.steps = append(one.steps, parsed)
		}
		if _, ok := clients[one.Process]; !ok {
			clients[one.Process] = len(clients)
		}
		operation := porcupine.Operation{ClientId: clients[one.Process], Input: one, Call: one.Call, Return: math.MaxInt64}
		if one.Return != nil {
			operation.Return = *one.Return
		}
		if one.Pinned {
			operation.Call = math.MinInt64
			one.turn = turns[one.Process]
			turns[one.Process]++
		}
		operations = append(operations, operation)
	}
	return operations, nil
}

func main() {
	seconds := flag.Int("seconds", 60, "how long to search")
	flag.Parse()
	operations, err := read()
	if err != nil {
		fmt.Fprintln(os.Stderr, "this is no history:", err)
		os.Exit(2)
	}
	verdict, info := porcupine.CheckOperationsVerbose(model, operations, time.Duration(*seconds)*time.Second)
	answer := struct {
		Result       string         `json:"result"`
		Transactions int            `json:"transactions"`
		Left         []*transaction `json:"left"`
	}{"serializable", len(operations), []*transaction{}}
	switch verdict {
	case porcupine.Unknown:
		answer.Result = "unknown"
	case porcupine.Illegal:
		answer.Result = "violation"
	}
	if verdict != porcupine.Ok {
		placed := map[int]bool{}
		for _, partition := range info.PartialLinearizationsOperations() {
			var longest []porcupine.Operation
			for _, order := range partition {
				if len(order) > len(longest) {
					longest = order
				}
			}
			for _, operation := range longest {
				placed[operation.Input.(*transaction).place] = true
			}
		}
		for _, operation := range operations {
			if one := operation.Input.(*transaction); !placed[one.place] && len(answer.Left) < 20 {
				answer.Left = append(answer.Left, one)
			}
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		panic(err)
	}
}
