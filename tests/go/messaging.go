package main

import (
	"context"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

func sendAndReceive(ctx context.Context, client *azservicebus.Client, entity string) seen {
	sender := must(client.NewSender(entity, nil))
	check(sender.SendMessage(ctx, &azservicebus.Message{
		Body:                  []byte("one"),
		MessageID:             ptr("m1"),
		Subject:               ptr("created"),
		CorrelationID:         ptr("c"),
		ContentType:           ptr("text/plain"),
		TimeToLive:            ptr(time.Minute),
		ApplicationProperties: map[string]any{"text": "t", "number": int64(5), "ratio": 1.5, "yes": true},
	}, nil))
	batch := must(sender.NewMessageBatch(ctx, nil))
	for _, body := range []string{"two", "three"} {
		check(batch.AddMessage(text(body), nil))
	}
	check(sender.SendMessageBatch(ctx, batch, nil))
	from := must(client.NewReceiverForQueue(entity, nil))
	messages := receive(ctx, from, 3)
	first := messages[0]
	for _, message := range messages {
		check(from.CompleteMessage(ctx, message, nil))
	}
	return seen{
		"bodies": bodies(messages), "id": first.MessageID, "subject": *first.Subject, "correlation": *first.CorrelationID,
		"ttl": first.TimeToLive.Seconds(), "properties": first.ApplicationProperties, "count": first.DeliveryCount,
		"locked": first.LockedUntil.After(time.Now()), "number": *first.SequenceNumber,
		"left": len(must(from.PeekMessages(ctx, 10, nil))),
	}
}

func settle(ctx context.Context, client *azservicebus.Client, entity string) seen {
	send(ctx, client, entity, text("abandon"), text("defer"), text("dead"))
	from := must(client.NewReceiverForQueue(entity, nil))
	messages := receive(ctx, from, 3)
	check(from.RenewMessageLock(ctx, messages[0], nil))
	check(from.DeferMessage(ctx, messages[1], nil))
	check(from.DeadLetterMessage(ctx, messages[2], &azservicebus.DeadLetterOptions{Reason: ptr("bad"), ErrorDescription: ptr("very")}))
	check(from.AbandonMessage(ctx, messages[0], &azservicebus.AbandonMessageOptions{PropertiesToModify: map[string]any{"tried": int64(1)}}))
	again := receive(ctx, from, 1)[0]
	check(from.CompleteMessage(ctx, again, nil))
	twice := from.CompleteMessage(ctx, again, nil)
	deferred := must(from.ReceiveDeferredMessages(ctx, []int64{*messages[1].SequenceNumber}, nil))[0]
	check(from.CompleteMessage(ctx, deferred, nil))
	letters := must(client.NewReceiverForQueue(entity, &azservicebus.ReceiverOptions{
		SubQueue: azservicebus.SubQueueDeadLetter, ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete,
	}))
	letter := receive(ctx, letters, 1)[0]
	return seen{
		"again": string(again.Body), "count": again.DeliveryCount, "properties": again.ApplicationProperties, "twice": failure(twice),
		"deferred": string(deferred.Body), "state": int(deferred.State),
		"letter": string(letter.Body), "reason": *letter.DeadLetterReason, "description": *letter.DeadLetterErrorDescription,
		"letterCount": letter.DeliveryCount, "deadCount": messages[2].DeliveryCount,
	}
}

func schedule(ctx context.Context, client *azservicebus.Client, entity string) seen {
	sender := must(client.NewSender(entity, nil))
	numbers := must(sender.ScheduleMessages(ctx, []*azservicebus.Message{text("kept"), text("cancelled")}, time.Now().Add(time.Hour), nil))
	from := must(client.NewReceiverForQueue(entity, nil))
	peeked := must(from.PeekMessages(ctx, 10, nil))
	check(sender.CancelScheduledMessages(ctx, numbers[1:], nil))
	must(sender.ScheduleMessages(ctx, []*azservicebus.Message{text("now")}, time.Now(), nil))
	found := receive(ctx, from, 1)
	check(from.CompleteMessage(ctx, found[0], nil))
	left := must(from.PeekMessages(ctx, 10, &azservicebus.PeekMessagesOptions{FromSequenceNumber: ptr(int64(0))}))
	return seen{"scheduled": bodies(peeked), "state": int(peeked[0].State), "now": bodies(found), "left": bodies(left)}
}

func resend(ctx context.Context, client *azservicebus.Client, entity string) seen {
	send(ctx, client, entity, &azservicebus.Message{
		Body: []byte("again"), MessageID: ptr("m"), PartitionKey: ptr("key"), CorrelationID: ptr("c"),
		ScheduledEnqueueTime: ptr(time.Now()), ApplicationProperties: map[string]any{"text": "t"},
	})
	from := must(client.NewReceiverForQueue(entity, nil))
	first := receive(ctx, from, 1)[0]
	check(from.CompleteMessage(ctx, first, nil))
	sender := must(client.NewSender(entity, nil))
	check(sender.SendMessage(ctx, first.Message(), nil))
	check(sender.SendAMQPAnnotatedMessage(ctx, first.RawAMQPMessage, nil))
	found := receive(ctx, from, 2)
	keys := []string{}
	for _, message := range found {
		check(from.CompleteMessage(ctx, message, nil))
		keys = append(keys, *message.PartitionKey)
	}
	return seen{"bodies": bodies(found), "keys": keys, "numbers": []int64{*first.SequenceNumber, *found[0].SequenceNumber, *found[1].SequenceNumber}}
}

func topic(ctx context.Context, client *azservicebus.Client, entity string) seen {
	eu, us := text("to eu"), text("to us")
	eu.ApplicationProperties = map[string]any{"region": "eu"}
	us.ApplicationProperties = map[string]any{"region": "us"}
	send(ctx, client, entity, us, eu)
	found := seen{}
	for name, count := range map[string]int{"eu": 1, "all": 2} {
		from := must(client.NewReceiverForSubscription(entity, name, &azservicebus.ReceiverOptions{ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete}))
		found[name] = bodies(receive(ctx, from, count))
	}
	return found
}

func refusals(ctx context.Context, client *azservicebus.Client, entity string) seen {
	nowhere := must(client.NewSender("nowhere", nil))
	sender := must(client.NewSender(entity, nil))
	large := sender.SendMessage(ctx, &azservicebus.Message{Body: make([]byte, 300_000)}, nil)
	return seen{"nowhere": failure(nowhere.SendMessage(ctx, text("x"), nil)), "large": failure(large)}
}
