/*
 * handlers.c - the kinds of signal handlers that the program has
 */
#include "handlers.h"

#include "dump_signal.h"

#include "base/bytes.h"
#include "config.h"
#include "guard.h"

#include <stdatomic.h>
#include <stddef.h>

/*
 * What was read is trusted so many times as long as it took to read it, so that
 * reading takes little of the time however slow system calls are: one for each
 * signal lasts microseconds on most kernels, and a millisecond on one that is
 * itself a program.
 */
#define TRUST 50u
#define TRUST_MIN_NS 2000000u
#define TRUST_MAX_NS 100000000u

unsigned handlers_read(sigset_t *restart)
{
	struct sigaction sa;
	unsigned kinds = 0;
	bool ours = false;

	sigemptyset(restart);
	for (int sig = 1; sig < NSIG; sig++) {
		if (sigaction(sig, NULL, &sa) || sa.sa_handler == SIG_DFL ||
		    sa.sa_handler == SIG_IGN || guard_is_alone(sig, &sa))
			continue;
		if (sa.sa_flags & SA_RESTART)
			sigaddset(restart, sig);
		if (dump_signal_is_ours(&sa))
			ours = true;
		else
			kinds |= sa.sa_flags & SA_RESTART ? HANDLERS_RESTART :
							    HANDLERS_INTERRUPT;
	}
	/* Ours is no reason to tell two kinds apart. */
	return kinds || !ours ? kinds : HANDLERS_RESTART;
}

unsigned handlers_kinds(uint64_t now_ns)
{
	/* Until when it is trusted, and below what it is. */
	static _Atomic uint64_t known;
	uint64_t last = atomic_load(&known), begin, end, trust;
	sigset_t restart;

	if (now_ns < (last & ~(uint64_t)3))
		return (unsigned)(last & 3);
	begin = clock_ns();
	last = handlers_read(&restart);
	end = clock_ns();
	trust = min_u64(max_u64((end - begin) * TRUST, TRUST_MIN_NS),
			TRUST_MAX_NS);
	last |= (end + trust) & ~(uint64_t)3;
	atomic_store(&known, last);
	return (unsigned)(last & 3);
}
