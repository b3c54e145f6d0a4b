// A peer of a balanced service, in Go: speaks the protocol of redis-stream-client-go with the libraries that it uses.
//
// It is written from the description of that protocol and is not that client. It prints a JSON object a line and takes
// commands from its standard input: `done <stream>`, `claim <stream> <entry id>`, `quit`. The end of the input kills it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

const (
	separator = "<MUTEX_KEY_SEP>"
	lockTTL   = 2 * time.Second
	field     = "lbs-input"
)

type message struct {
	DataStreamName string
	Info           map[string]any
}

type peer struct {
	ctx               context.Context
	client            *redis.Client
	locks             *redsync.Redsync
	id, stream, group string
	idle              time.Duration
	claimsByItself    bool
	mu                sync.Mutex
	owned             map[string]*ownership
	output            sync.Mutex
}

type ownership struct {
	entryID string
	mutex   *redsync.Mutex
}

func (p *peer) say(did string, facts map[string]any) {
	line := map[string]any{"did": did}
	for name, value := range facts {
		line[name] = value
	}
	text, _ := json.Marshal(line)
	p.output.Lock()
	defer p.output.Unlock()
	fmt.Println(string(text))
}

func main() {
	address := flag.String("address", "127.0.0.1:6379", "")
	service := flag.String("service", "svc", "")
	events := flag.String("events", "KEx", "what notify-keyspace-events is set to: KEx, or Ex as before v0.3.4")
	force := flag.Bool("force", false, "overwrite what notify-keyspace-events is set to")
	claims := flag.Bool("claims", true, "claim what expires")
	idle := flag.Duration("idle", 40*time.Second, "the idle time after which the start takes entries over")
	flag.Parse()

	client := redis.NewClient(&redis.Options{Addr: *address, DB: 0})
	p := &peer{
		ctx: context.Background(), client: client, locks: redsync.New(goredis.NewPool(client)),
		id: "redis-consumer-" + os.Getenv("POD_NAME"), stream: *service + "-input", group: *service + "-group",
		idle: *idle, claimsByItself: *claims, owned: map[string]*ownership{},
	}
	if err := p.start(*events, *force); err != nil {
		p.say("failed", map[string]any{"error": err.Error()})
		os.Exit(1)
	}
	p.say("ready", nil)
	p.obey()
}

func (p *peer) start(events string, force bool) error {
	found, err := p.client.ConfigGet(p.ctx, "notify-keyspace-events").Result()
	if err != nil {
		return err
	}
	if found["notify-keyspace-events"] != "" && !force {
		return errors.New("existing configuration detected without force override option")
	}
	if err := p.client.ConfigSet(p.ctx, "notify-keyspace-events", events).Err(); err != nil {
		return err
	}
	pattern := "__keyspace@0__:*" + separator + "*"
	if !strings.Contains(events, "K") {
		pattern = "__keyevent@0__:expired"
	}
	subscription := p.client.PSubscribe(p.ctx, pattern)
	if _, err := subscription.Receive(p.ctx); err != nil {
		return err
	}
	err = p.client.XGroupCreateMkStream(p.ctx, p.stream, p.group, "$").Err()
	if err != nil && !strings.Contains(err.Error(), "BUSYGROUP") {
		return err
	}
	p.recover()
	go p.listen(subscription)
	go p.read()
	return nil
}

// recover takes over what has been idle for long, without asking for its lock, and gives up at the first that is held.
func (p *peer) recover() {
	for {
		entries, cursor, err := p.client.XAutoClaim(p.ctx, &redis.XAutoClaimArgs{
			Stream: p.stream, Group: p.group, Consumer: p.id, MinIdle: p.idle, Start: "0-0", Count: 1000,
		}).Result()
		if err != nil {
			p.say("recovery failed", map[string]any{"error": err.Error()})
			return
		}
		for _, entry := range entries {
			p.say("recovered", map[string]any{"id": entry.ID})
			if err := p.begin(entry); err != nil {
				p.say("recovery failed", map[string]any{"error": err.Error()})
				return
			}
		}
		if cursor == "0-0" {
			return
		}
	}
}

func (p *peer) read() {
	for {
		reply, err := p.client.XReadGroup(p.ctx, &redis.XReadGroupArgs{
			Group: p.group, Consumer: p.id, Streams: []string{p.stream, ">"}, Block: 0,
		}).Result()
		if err != nil {
			p.say("StreamTerminated", map[string]any{"error": err.Error()})
			return
		}
		for _, entry := range reply[0].Messages {
			if err := p.begin(entry); err != nil {
				p.say("StreamTerminated", map[string]any{"error": err.Error()})
				return
			}
		}
	}
}

func (p *peer) begin(entry redis.XMessage) error {
	var found message
	text, ok := entry.Values[field].(string)
	if !ok {
		return errors.New("invalid key for LBS")
	}
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		return err
	}
	if found.DataStreamName == "" {
		return errors.New("lbs message does not have data stream name")
	}
	if err := p.lock(found.DataStreamName, entry.ID); err != nil {
		return err
	}
	p.say("StreamAdded", map[string]any{"stream": found.DataStreamName, "id": entry.ID, "info": found.Info})
	return nil
}

func (p *peer) lock(name, entryID string) error {
	mutex := p.locks.NewMutex(name+separator+entryID,
		redsync.WithExpiry(lockTTL), redsync.WithRetryDelay(10*time.Millisecond), redsync.WithSetNXOnExtend(),
		redsync.WithGenValueFunc(func() (string, error) { return p.id, nil }))
	if err := mutex.LockContext(p.ctx); err != nil {
		return fmt.Errorf("mutex error on operation [locking mutex]: %w", err)
	}
	owned := &ownership{entryID: entryID, mutex: mutex}
	p.mu.Lock()
	p.owned[name] = owned
	p.mu.Unlock()
	go p.extend(name, owned)
	return nil
}

func (p *peer) extend(name string, owned *ownership) {
	for {
		p.mu.Lock()
		current := p.owned[name]
		p.mu.Unlock()
		if current != owned {
			return
		}
		if ok, err := owned.mutex.ExtendContext(p.ctx); !ok || err != nil {
			p.mu.Lock()
			delete(p.owned, name)
			p.mu.Unlock()
			p.say("StreamDisowned", map[string]any{"stream": name, "id": owned.entryID})
			return
		}
		time.Sleep(lockTTL / 2)
	}
}

func (p *peer) listen(subscription *redis.PubSub) {
	for event := range subscription.Channel() {
		key := event.Payload
		if strings.HasPrefix(event.Channel, "__keyspace@") {
			if event.Payload != "expired" {
				continue
			}
			key = strings.SplitN(event.Channel, ":", 2)[1]
		}
		parts := strings.SplitN(key, separator, 2)
		if len(parts) != 2 {
			continue
		}
		p.say("StreamExpired", map[string]any{"stream": parts[0], "id": parts[1]})
		if p.claimsByItself {
			p.claim(parts[0], parts[1])
		}
	}
}

func (p *peer) claim(name, entryID string) {
	claimed, err := p.client.XClaim(p.ctx, &redis.XClaimArgs{
		Stream: p.stream, Group: p.group, Consumer: p.id, MinIdle: lockTTL, Messages: []string{entryID},
	}).Result()
	if err == nil && len(claimed) == 0 {
		err = errors.New("already claimed")
	}
	if err == nil {
		err = p.lock(name, entryID)
	}
	if err != nil {
		p.say("refused", map[string]any{"stream": name, "id": entryID, "error": err.Error()})
		return
	}
	p.say("claimed", map[string]any{"stream": name, "id": entryID})
}

func (p *peer) done(name string) {
	p.mu.Lock()
	owned := p.owned[name]
	delete(p.owned, name)
	p.mu.Unlock()
	if owned == nil {
		p.say("refused", map[string]any{"stream": name, "error": "data stream not found"})
		return
	}
	_, err := owned.mutex.UnlockContext(p.ctx)
	if err == nil || errors.Is(err, redsync.ErrLockAlreadyExpired) {
		err = p.client.XAck(p.ctx, p.stream, p.group, owned.entryID).Err()
	}
	if err == nil {
		err = p.client.XDel(p.ctx, p.stream, owned.entryID).Err()
	}
	p.say("done", map[string]any{"stream": name, "is_success": err == nil})
}

func (p *peer) obey() {
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		words := strings.Fields(commands.Text())
		switch {
		case len(words) == 2 && words[0] == "done":
			p.done(words[1])
		case len(words) == 3 && words[0] == "claim":
			p.claim(words[1], words[2])
		case len(words) == 1 && words[0] == "quit":
			return
		}
	}
}
