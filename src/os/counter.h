/*
 * counter.h - time by a counter of the processor's, set right by a clock
 *
 * The counter runs at a constant but unknown rate; between two readings of the
 * clock it gives the time. If it is ahead of the clock at the next reading, it
 * is slowed for a while, since time never goes back. If it is too far off it is
 * not usable: the machine was suspended, or migrated.
 *
 * Reading both takes a while, and the clock's time is one moment of it. A
 * reading that takes longer than others is not used: the thread was preempted.
 */
#ifndef SOFTHCA_OS_COUNTER_H
#define SOFTHCA_OS_COUNTER_H

#include <stdbool.h>
#include <stdint.h>

#define COUNTER_SET_NS 5000000 /* so often it is set right */
#define COUNTER_OFF_NS 1000000 /* so far off, and a thousandth, it may be */

struct counter {
	uint64_t cycles, ns; /* a moment, by both */
	uint64_t rate; /* ns in 2^32 cycles, from then on */
	uint64_t first_cycles, first_ns; /* since when the rate is measured */
};

/* Whether a reading of width cycles is as good as others; *least: the width of
 * the best one, 0 for the first. */
static inline bool counter_is_good(uint64_t *least, uint64_t width)
{
	if (!*least || width < *least)
		*least = width ? width : 1;
	if (width <= 2 * *least)
		return true;
	*least += *least / 8 + 1;
	return false;
}

static inline uint64_t counter_scale(uint64_t cycles, uint64_t rate)
{
	return (uint64_t)((unsigned __int128)cycles * rate >> 32);
}

/* Of two moments, by both. */
static inline uint64_t counter_rate(uint64_t cycles, uint64_t ns)
{
	return (uint64_t)(((unsigned __int128)ns << 32) / cycles);
}

/* The clock has shown these. */
static inline void counter_init(struct counter *c, uint64_t first_cycles,
				uint64_t first_ns, uint64_t cycles, uint64_t ns)
{
	*c = (struct counter){
		.cycles = cycles,
		.ns = ns,
		.rate = counter_rate(cycles - first_cycles, ns - first_ns),
		.first_cycles = first_cycles,
		.first_ns = first_ns,
	};
}

static inline uint64_t counter_ns(const struct counter *c, uint64_t cycles)
{
	/* Another processor's may be a little behind. */
	if ((int64_t)(cycles - c->cycles) < 0)
		return c->ns;
	return c->ns + counter_scale(cycles - c->cycles, c->rate);
}

/*
 * The clock has shown ns at cycles, and now it is now_cycles. False, and as it
 * was: the counter does not count time.
 */
static inline bool counter_set(struct counter *c, uint64_t cycles, uint64_t ns,
			       uint64_t now_cycles)
{
	const uint64_t is = counter_ns(c, now_cycles);
	uint64_t rate, shall, off;

	if (cycles <= c->first_cycles || ns <= c->first_ns)
		return false;
	rate = counter_rate(cycles - c->first_cycles, ns - c->first_ns);
	shall = ns + counter_scale(now_cycles - cycles, rate);
	off = is > shall ? is - shall : shall - is;
	if (shall < c->ns || off > COUNTER_OFF_NS + (shall - c->ns) / 1000)
		return false;
	c->cycles = now_cycles;
	c->ns = is > shall ? is : shall;
	c->rate = rate;
	if (is > shall) /* by the next time it is right, or half as far off */
		c->rate -= (uint64_t)((unsigned __int128)rate *
				      (off < COUNTER_SET_NS / 2 ?
					       off :
					       COUNTER_SET_NS / 2) /
				      COUNTER_SET_NS);
	return true;
}

#endif
