/*
 * ring_fuzz.c - a ring of records in memory where anything is written: the
 * consumer's end over any records, and the producer's over any way back
 *
 * The input is a program of small steps; some of them write its bytes into the
 * memory of the ring, the others are what consumer, producer and next producer
 * do there. What each of them knows by itself has to stay right throughout.
 */
#include "fuzz.h"
#include "input.h"

#include "link/ring.h"

static struct ring_mem *mem;
static struct ring_in consumer;
static struct ring_out producer;
static bool attached;
static uint32_t sum; /* so that nothing that is read is left out */

static void check_consumer(void)
{
	const uint32_t at = consumer.pos & 0xffff;

	FUZZ_CHECK(at < RING_UNITS);
	FUZZ_CHECK(consumer.broken ? consumer.line == &consumer.none :
				     consumer.line == &mem->unit[at]);
}

static void check_producer(void)
{
	if (!attached)
		return;
	FUZZ_CHECK(producer.at < RING_UNITS && producer.oldest < RING_UNITS);
	FUZZ_CHECK(producer.limit <= RING_UNITS);
	FUZZ_CHECK(ring_unread(&producer) < RING_UNITS);
	FUZZ_CHECK((producer.oldest + ring_unread(&producer)) % RING_UNITS ==
		   producer.at);
	FUZZ_CHECK(producer.clear > producer.at &&
		   producer.clear <= RING_UNITS);
}

static void consume(struct input *in, uint32_t n)
{
	struct ring_rec rec = { 0 }, was;
	uint8_t *copy;
	uint32_t bytes;

	while (n-- && ring_get(&consumer, &rec)) {
		check_consumer();
		bytes = ring_bytes(&rec);
		FUZZ_CHECK(bytes <= RING_DATA_MAX);
		ring_get_rest(&consumer, &rec);
		was = rec;
		/* It changes after it was got. */
		if (n % 4 == 0)
			write_some(in, consumer.line, 5);
		copy = malloc(bytes ? bytes : 1);
		FUZZ_CHECK(copy);
		memcpy(copy, ring_in_data(&consumer), bytes);
		sum += copy[0];
		free(copy);
		FUZZ_CHECK(!memcmp(&was, &rec, sizeof(rec)));
		ring_release(&consumer, n % 2 ? RING_ACKED : RING_DONE);
		check_consumer();
	}
}

static void produce(uint32_t kind, uint32_t bytes)
{
	struct ring_rec *rec = ring_begin(&producer, bytes);

	if (!rec)
		return;
	FUZZ_CHECK((uint8_t *)rec >= (uint8_t *)mem->unit);
	FUZZ_CHECK(ring_data(rec) + bytes <= (uint8_t *)mem + RING_BYTES);
	memset((uint8_t *)rec + sizeof(rec->word), (int)bytes,
	       RING_HDR - sizeof(rec->word) + bytes);
	if (kind % 4 == 0)
		return; /* gives up */
	if (kind % 4 == 1)
		ring_commit(&producer, bytes, bytes, producer.at, kind);
	else
		ring_put(&producer, bytes, bytes, producer.at, kind);
}

static void reap(void)
{
	struct ring_ack ack;
	uint32_t n;

	for (n = 0; ring_reap(&producer, &ack); n++) {
		FUZZ_CHECK(ack.qpn && ack.qpn <= RING_DATA_MAX);
		FUZZ_CHECK(ack.psn < RING_UNITS);
		FUZZ_CHECK(n < RING_UNITS);
		check_producer();
	}
	ring_out_check(&producer);
}

static void step(struct input *in)
{
	uint32_t op = take(in, 1), v = take(in, 2), n;

	if (!attached && op % 16 >= 8 && op % 16 < 13)
		op = 13;
	switch (op % 16) {
	case 0: /* anything, anywhere */
		n = take(in, 1);
		write_some(in, (uint8_t *)mem + v,
			   n < RING_BYTES - v ? n : RING_BYTES - v);
		break;
	case 1: /* a record of a length, the consumer's next one */
		if (!consumer.broken)
			consumer.line->word = v | op << 16;
		break;
	case 2: /* of any, anywhere */
		mem->unit[v % RING_UNITS].word = take(in, 4);
		break;
	case 3:
		mem->ack_note[v % RING_UNITS] = (uint8_t)take(in, 1);
		break;
	case 4: /* the right lap, where it is waited for */
		mem->ack_note[producer.oldest] = producer.lap | (v & 1);
		break;
	case 5:
		mem->in.pos = take(in, 4);
		break;
	case 6:
		mem->in.broken = v == 0;
		break;
	case 7:
		consume(in, v);
		break;
	case 8:
		produce(op / 16, v % (RING_DATA_MAX + 1));
		break;
	case 9:
		for (v %= 1100; v; v--)
			produce(op / 16, v % 64);
		break;
	case 10:
		ring_publish(&producer);
		break;
	case 11:
		reap();
		break;
	case 12:
		ring_out_check(&producer);
		break;
	case 13:
		attached = !ring_out_attach(&producer, mem, (uint16_t)v | 1);
		break;
	case 14:
		ring_in_check(&consumer);
		break;
	case 15:
		if (consumer.broken)
			ring_in_reset(&consumer);
		else if (v % 16 == 0)
			ring_in_break(&consumer, "the input says so");
		break;
	}
	check_consumer();
	check_producer();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };

	/* Of the very size, so that a sanitizer sees a byte too far. */
	mem = aligned_alloc(64, sizeof(*mem));
	FUZZ_CHECK(mem);
	memset(mem, 0, sizeof(*mem));
	ring_in_init(&consumer, mem);
	attached = !ring_out_attach(&producer, mem, 1);
	FUZZ_CHECK(attached);
	while (in.left)
		step(&in);
	free(mem);
	return 0;
}
