package main

import (
	"context"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

func administration(ctx context.Context, client *admin.Client, entity string) seen {
	result := seen{}
	must(client.CreateQueue(ctx, entity, &admin.CreateQueueOptions{Properties: &admin.QueueProperties{
		LockDuration: ptr("PT45S"), EnablePartitioning: ptr(true), MaxSizeInMegabytes: ptr(int32(4096)), MaxDeliveryCount: ptr(int32(7)),
	}}))
	queue := must(client.GetQueue(ctx, entity, nil))
	result["size"], result["lock"], result["deliveries"] = *queue.MaxSizeInMegabytes, *queue.LockDuration, *queue.MaxDeliveryCount
	updated := must(client.UpdateQueue(ctx, entity, queue.QueueProperties, nil))
	result["sizeAfterUpdate"] = *updated.MaxSizeInMegabytes
	updated.QueueProperties.RequiresSession = ptr(true)
	_, err := client.UpdateQueue(ctx, entity, updated.QueueProperties, nil)
	result["fixed"] = failure(err)
	runtime := must(client.GetQueueRuntimeProperties(ctx, entity, nil))
	result["queueAccessed"], result["active"] = !runtime.AccessedAt.IsZero(), runtime.ActiveMessageCount

	topic := entity + "-topic"
	must(client.CreateTopic(ctx, topic, nil))
	must(client.CreateSubscription(ctx, topic, "all", nil))
	must(client.CreateRule(ctx, topic, "all", &admin.CreateRuleOptions{
		Name: ptr("eu"), Filter: &admin.SQLFilter{Expression: "region = 'eu'"}, Action: &admin.SQLAction{Expression: "SET seen = 1"},
	}))
	subscription := must(client.GetSubscriptionRuntimeProperties(ctx, topic, "all", nil))
	result["subscriptionAccessed"] = !subscription.AccessedAt.IsZero()
	rules := []string{}
	for pager := client.NewListRulesPager(topic, "all", nil); pager.More(); {
		for _, rule := range must(pager.NextPage(ctx)).Rules {
			rules = append(rules, rule.Name)
		}
	}
	result["rules"] = rules
	names := []string{}
	for pager := client.NewListQueuesPager(&admin.ListQueuesOptions{MaxPageSize: 2}); pager.More(); {
		for _, found := range must(pager.NextPage(ctx)).Queues {
			names = append(names, found.QueueName)
		}
	}
	result["queues"] = len(names)
	must(client.DeleteTopic(ctx, topic, nil))
	must(client.DeleteQueue(ctx, entity, nil))
	result["gone"] = must(client.GetQueue(ctx, entity, nil)) == nil
	result["namespace"] = must(client.GetNamespaceProperties(ctx, nil)).Name
	return result
}
