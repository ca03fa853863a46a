// Stories told with the unmodified Go client. `stories STORY CONNECTION_STRING ENTITY` prints what it saw as JSON.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
	"github.com/coder/websocket"
)

type seen map[string]any

var stories = map[string]func(ctx context.Context, client *azservicebus.Client, entity string) seen{
	"send":         sendAndReceive,
	"settle":       settle,
	"schedule":     schedule,
	"resend":       resend,
	"sessions":     sessions,
	"lost_session": lostSession,
	"topic":        topic,
	"errors":       refusals,
}

func main() {
	story, connectionString, entity := os.Args[1], os.Args[2], os.Args[3]
	ctx, cancel := context.WithTimeout(context.Background(), 80*time.Second)
	defer cancel()
	var result seen
	if story == "administration" {
		result = administration(ctx, must(admin.NewClientFromConnectionString(connectionString, &admin.ClientOptions{
			ClientOptions: azcore.ClientOptions{Transport: overTLS()},
		})), entity)
	} else {
		client := must(azservicebus.NewClientFromConnectionString(connectionString, options(connectionString)))
		result = stories[story](ctx, client, entity)
		check(client.Close(ctx))
	}
	check(json.NewEncoder(os.Stdout).Encode(result))
}

// How the client reaches the broker: plainly, over TLS, or through a WebSocket, as the environment says.
func options(connectionString string) *azservicebus.ClientOptions {
	chosen := &azservicebus.ClientOptions{RetryOptions: azservicebus.RetryOptions{MaxRetries: -1}}
	if !strings.Contains(connectionString, "UseDevelopmentEmulator=true") {
		chosen.TLSConfig = trust()
	}
	if name := os.Getenv("SUB_PROTOCOL"); name != "" {
		chosen.NewWebSocketConn = func(ctx context.Context, args azservicebus.NewWebSocketConnArgs) (net.Conn, error) {
			dial := &websocket.DialOptions{Subprotocols: []string{name}, HTTPClient: overTLS()}
			connection, _, err := websocket.Dial(ctx, args.Host, dial)
			if err != nil {
				return nil, err
			}
			if connection.Subprotocol() != name {
				return nil, fmt.Errorf("offered %s, answered %q", name, connection.Subprotocol())
			}
			return websocket.NetConn(context.Background(), connection, websocket.MessageBinary), nil
		}
	}
	return chosen
}

func trust() *tls.Config {
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(must(os.ReadFile(os.Getenv("CA_FILE")))) {
		panic("no certificate in CA_FILE")
	}
	// The client would check the certificate for "host:port".
	return &tls.Config{RootCAs: authorities, ServerName: "localhost"}
}

func overTLS() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: trust()}}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func failure(err error) any {
	if err == nil {
		return nil
	}
	var coded *azservicebus.Error
	code := ""
	if errors.As(err, &coded) {
		code = string(coded.Code)
	}
	return seen{"code": code, "message": err.Error()}
}

func bodies(messages []*azservicebus.ReceivedMessage) []string {
	found := []string{}
	for _, message := range messages {
		found = append(found, string(message.Body))
	}
	return found
}

func text(body string) *azservicebus.Message {
	return &azservicebus.Message{Body: []byte(body)}
}

func ptr[T any](value T) *T {
	return &value
}

func send(ctx context.Context, client *azservicebus.Client, entity string, messages ...*azservicebus.Message) {
	sender := must(client.NewSender(entity, nil))
	for _, message := range messages {
		check(sender.SendMessage(ctx, message, nil))
	}
	check(sender.Close(ctx))
}

type receiver interface {
	ReceiveMessages(context.Context, int, *azservicebus.ReceiveMessagesOptions) ([]*azservicebus.ReceivedMessage, error)
}

// Exactly so many, however many calls that takes.
func receive(ctx context.Context, from receiver, count int) []*azservicebus.ReceivedMessage {
	found := []*azservicebus.ReceivedMessage{}
	for len(found) < count {
		found = append(found, must(from.ReceiveMessages(ctx, count-len(found), nil))...)
	}
	return found
}
