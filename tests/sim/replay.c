/*
 * replay.c - plays the halves of a capture, and accounts for its packets
 *
 * Each packet is either compared or cut, for a reason of CUTS. A capture that is
 * complete has every packet that either end sent: nothing in it may be cut as
 * something that the capture lacks, and nothing compared by PSN alone.
 */
#include "replay.h"

const char *current;
struct tally tally;

/* One half of the conversations of a service; what is counted are requests,
 * or (RC's responder) answers. */
struct half {
	const char *name;
	enum roce_service service;
	enum side side;
	void (*play)(struct streams *all, bool answering);
	bool answering;
	struct tally total;
};

static void play_rc(struct streams *all, bool answering)
{
	bool *taken = calloc(all->n + 1, sizeof(*taken));

	for (size_t i = 0; i < all->n; i++) {
		struct stream *a, *s = all->s, none = { .qpn = 1 };
		size_t requests = 0, replies = 0, unheard;

		if (!s[i].requests)
			continue;
		a = answers(s, all->n, &s[i], taken);
		if (a) {
			taken[a - s] = true;
			cut_at_hole(&s[i], a, mtu_of(&s[i], a), &requests,
				    &replies);
		}
		unheard = answering ? cut_unheard(&s[i], a) : 0;
		tally.cut[CUT_HOLE] += answering ? replies : requests;
		tally.unheard += unheard;
		if (!s[i].n)
			continue;
		if (answering)
			play_responder(&s[i], a);
		else
			play_requester(&s[i], a ? a : &none);
		tally.conversations++;
	}
	for (size_t i = 0; i < all->n && answering; i++)
		if (!all->s[i].requests && !taken[i])
			tally.cut[CUT_FOREIGN] += all->s[i].n;
	free(taken);
}

static void play_uc(struct streams *all, bool answering)
{
	for (size_t i = 0; i < all->n; i++)
		if (answering)
			play_uc_receiver(&all->s[i]);
		else
			play_sender(&all->s[i], IBV_QPT_UC);
}

static void play_ud(struct streams *all, bool answering)
{
	for (size_t i = 0; i < all->n; i++)
		if (answering)
			play_ud_receiver(&all->s[i]);
		else
			play_sender(&all->s[i], IBV_QPT_UD);
}

/* Adds up, and says what was cut. */
static void account(struct half *half, size_t requests, size_t packets,
		    bool complete)
{
	struct tally *total = &half->total;
	static const char *const words[] = {
#define X(name, lack, w) w,
		CUTS(X)
#undef X
	};
	static const bool lacks[] = {
#define X(name, lack, w) lack,
		CUTS(X)
#undef X
	};
	size_t cut = 0;

	for (int i = 0; i < NCUTS; i++) {
		if (tally.cut[i])
			print_message("%s: cut %zu of %zu %s: %s\n", current,
				      tally.cut[i], packets, half->name,
				      words[i]);
		cut += tally.cut[i];
		total->cut[i] += tally.cut[i];
	}
	total->compared += tally.compared;
	total->conversations += tally.conversations;
	if (tally.by_psn)
		print_message(
			"%s: %s of %zu of %zu conversations compared by PSN: "
			"captured beyond where packets got lost or overtaken\n",
			current, half->name, tally.by_psn, tally.conversations);
	total->by_psn += tally.by_psn;
	for (int i = 0; i < NCUTS && complete; i++)
		if (tally.cut[i] && lacks[i])
			fail_msg("%s is complete, but %zu %s are cut: %s",
				 current, tally.cut[i], half->name, words[i]);
	if (complete && tally.by_psn)
		fail_msg("%s is complete, but %s do not follow from what is in "
			 "front of them",
			 current, half->name);
	if (tally.compared + cut != packets)
		fail_msg("%s: %zu %s, of which %zu were compared and %zu cut",
			 current, packets, half->name, tally.compared, cut);
	/* Without a request that anybody answers there is no answer either. */
	if (requests > tally.unheard && !tally.conversations)
		fail_msg("%s: no conversation in %zu requests", current,
			 requests);
	if (packets && !tally.compared)
		fail_msg("%s: %zu %s, and none compared", current, packets,
			 half->name);
}

static struct half halves[REPLAY_HALVES] = {
	{ "answers of RC responders",
	  ROCE_RC,
	  CONNECTION,
	  play_rc,
	  true,
	  { 0 } },
	{ "requests of RC requesters",
	  ROCE_RC,
	  CONNECTION,
	  play_rc,
	  false,
	  { 0 } },
	{ "packets of UC senders", ROCE_UC, CONNECTION, play_uc, false, { 0 } },
	{ "packets to UC receivers",
	  ROCE_UC,
	  CONNECTION,
	  play_uc,
	  true,
	  { 0 } },
	{ "datagrams of UD senders",
	  ROCE_UD,
	  UD_SENDER,
	  play_ud,
	  false,
	  { 0 } },
	{ "datagrams to UD receivers",
	  ROCE_UD,
	  UD_RECEIVER,
	  play_ud,
	  true,
	  { 0 } },
};

static void close_streams(struct streams *all)
{
	for (size_t i = 0; i < all->n; i++)
		free(all->s[i].pkt);
	free(all->s);
}

/* Sorts what a half is about; how many packets are to be accounted for. */
static size_t open_streams(const struct captures *caps, const struct half *half,
			   struct streams *all, size_t *requests)
{
	size_t packets = 0;

	*requests = split(caps, all, half->service, half->side);
	for (size_t i = 0; i < all->n; i++)
		if (half->service != ROCE_RC ||
		    all->s[i].requests != half->answering)
			packets += all->s[i].n;
	return packets;
}

const char *replay_name(size_t half)
{
	return halves[half].name;
}

bool replay_any(const struct captures *caps, size_t half)
{
	struct streams all = { 0 };
	size_t requests, packets;

	packets = open_streams(caps, &halves[half], &all, &requests);
	close_streams(&all);
	return packets || requests;
}

void replay(const struct captures *caps, const char *name, size_t half)
{
	struct half *h = &halves[half];
	struct streams all = { 0 };
	size_t requests, packets;

	P = NULL;
	current = name;
	tally = (struct tally){ 0 };
	packets = open_streams(caps, h, &all, &requests);
	h->play(&all, h->answering);
	account(h, requests, packets, capture_complete(name));
	close_streams(&all);
}

void replay_totals(void)
{
	for (size_t i = 0; i < REPLAY_HALVES; i++) {
		const struct tally *t = &halves[i].total;
		size_t cut = 0;

		for (int k = 0; k < NCUTS; k++)
			cut += t->cut[k];
		print_message("%zu conversations, %zu %s compared, %zu cut\n",
			      t->conversations, t->compared, halves[i].name,
			      cut);
	}
}
