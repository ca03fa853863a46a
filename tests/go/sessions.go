package main

import (
	"context"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

func inSession(body string, id string) *azservicebus.Message {
	return &azservicebus.Message{Body: []byte(body), SessionID: &id}
}

func sessions(ctx context.Context, client *azservicebus.Client, entity string) seen {
	result := seen{}
	send(ctx, client, entity, inSession("a1", "a"), inSession("b1", "b"), inSession("a2", "a"), inSession("a3", "a"))
	a := must(client.AcceptSessionForQueue(ctx, entity, "a", nil))
	result["id"], result["until"] = a.SessionID(), a.LockedUntil().After(time.Now())
	result["peeked"] = bodies(must(a.PeekMessages(ctx, 10, nil)))

	_, err := client.AcceptSessionForQueue(ctx, entity, "a", nil)
	result["held"] = failure(err)

	messages := receive(ctx, a, 3)
	result["found"] = bodies(messages)
	check(a.DeferMessage(ctx, messages[1], nil))
	check(a.CompleteMessage(ctx, messages[0], nil))
	check(a.AbandonMessage(ctx, messages[2], nil))
	deferred := must(a.ReceiveDeferredMessages(ctx, []int64{*messages[1].SequenceNumber}, nil))
	result["deferred"] = bodies(deferred)
	check(a.CompleteMessage(ctx, deferred[0], nil))
	again := receive(ctx, a, 1)[0]
	result["again"] = seen{"body": string(again.Body), "count": again.DeliveryCount}

	result["unset"] = must(a.GetSessionState(ctx, nil)) == nil
	check(a.SetSessionState(ctx, []byte("progress"), nil))
	result["state"] = string(must(a.GetSessionState(ctx, nil)))
	check(a.SetSessionState(ctx, []byte{}, nil))
	result["cleared"] = must(a.GetSessionState(ctx, nil)) == nil
	before := a.LockedUntil()
	check(a.RenewSessionLock(ctx, nil))
	result["renewed"] = a.LockedUntil().After(before)

	b := must(client.AcceptNextSessionForQueue(ctx, entity, nil))
	result["next"], result["inNext"] = b.SessionID(), bodies(receive(ctx, b, 1))
	briefly, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err = client.AcceptNextSessionForQueue(briefly, entity, nil)
	result["none"] = failure(err)

	listed := []string{}
	for pager := client.NewListSessionsForQueuePager(entity, nil); pager.More(); {
		listed = append(listed, must(pager.NextPage(ctx)).Sessions...)
	}
	result["listed"] = listed
	plain := must(client.NewReceiverForQueue(entity, nil))
	_, err = plain.ReceiveMessages(ctx, 1, nil)
	result["without"] = failure(err)
	check(a.Close(ctx))
	check(b.Close(ctx))
	return result
}

// Two workers on one connection: the lock of the first ends, the second takes the session over.
func lostSession(ctx context.Context, client *azservicebus.Client, entity string) seen {
	send(ctx, client, entity, inSession("one", "s"))
	lost := must(client.AcceptSessionForQueue(ctx, entity, "s", nil))
	message := receive(ctx, lost, 1)[0]
	time.Sleep(time.Until(lost.LockedUntil()) + 200*time.Millisecond)
	holder := must(client.AcceptSessionForQueue(ctx, entity, "s", nil))
	check(holder.SetSessionState(ctx, []byte("of the new holder"), nil))
	result := seen{
		"renew": failure(lost.RenewSessionLock(ctx, nil)),
		"set":   failure(lost.SetSessionState(ctx, []byte("overwritten"), nil)),
		"state": string(must(holder.GetSessionState(ctx, nil))),
		"again": bodies(receive(ctx, holder, 1)),
	}
	// Last: the client takes seconds to give up, and the new holder's lock is short too.
	result["complete"] = failure(lost.CompleteMessage(ctx, message, nil))
	return result
}
