/*
 * guard.c - faults of the CPU on a program's memory, see guard.h
 *
 * The program's own handlers mean what they meant. One that was there before
 * ours is asked first about memory that is mapped and protected, since it may be
 * how the program learns of writes; what is not mapped, or behind the end of its
 * file, comes back by no handler that we know of. Where there was none, the
 * signal takes its default course, at the instruction that it is about.
 */
#include "guard.h"

#include "base/store_tail.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
/*
 * A small copy prepares nothing for its way back: a fault is one of its own if
 * the instruction is, and then it returns -EFAULT. At least one byte; as
 * store_tail_last().
 */
#define SMALL 128u
int guard_small(void *dst, const void *src, size_t len)
	__attribute__((visibility("hidden")));
extern const char guard_small_end[] __attribute__((visibility("hidden")));
extern const char guard_small_fault[] __attribute__((visibility("hidden")));

__attribute__((naked, noinline, used)) int
guard_small(__attribute__((unused)) void *dst,
	    __attribute__((unused)) const void *src,
	    __attribute__((unused)) size_t len)
{
	__asm__("	sub	$8, %rdx\n" /* what is before the last word */
		"	jb	6f\n"
		"	mov	(%rsi,%rdx), %rax\n"
		"	jz	5f\n"
		"	sub	$16, %rdx\n"
		"	jb	2f\n"
		"1:	movups	(%rsi), %xmm0\n"
		"	movups	%xmm0, (%rdi)\n"
		"	add	$16, %rsi\n"
		"	add	$16, %rdi\n"
		"	sub	$16, %rdx\n"
		"	jae	1b\n"
		"2:	test	$8, %dl\n"
		"	jz	3f\n"
		"	mov	(%rsi), %rcx\n"
		"	mov	%rcx, (%rdi)\n"
		"	add	$8, %rsi\n"
		"	add	$8, %rdi\n"
		"3:	and	$7, %edx\n"
		"	jz	5f\n"
		"4:	mov	(%rsi), %cl\n"
		"	mov	%cl, (%rdi)\n"
		"	inc	%rsi\n"
		"	inc	%rdi\n"
		"	dec	%edx\n"
		"	jnz	4b\n"
		"5:	mov	%rax, (%rdi)\n"
		"	xor	%eax, %eax\n"
		"	ret\n"
		"6:	add	$8, %edx\n" /* less: the last byte last */
		"7:	mov	(%rsi), %cl\n"
		"	mov	%cl, (%rdi)\n"
		"	inc	%rsi\n"
		"	inc	%rdi\n"
		"	dec	%edx\n"
		"	jnz	7b\n"
		"	xor	%eax, %eax\n"
		"	ret\n"
		"	.globl	guard_small_end, guard_small_fault\n"
		"	.hidden	guard_small_end, guard_small_fault\n"
		"guard_small_end:\n"
		"guard_small_fault:\n"
		"	mov	$-14, %eax\n" /* -EFAULT */
		"	ret\n");
}

/* Whether a signal has come from there; it returns behind the copy then. */
static bool small_caught(ucontext_t *uc)
{
	greg_t *ip = &uc->uc_mcontext.gregs[REG_RIP];

	if ((uintptr_t)*ip < (uintptr_t)guard_small ||
	    (uintptr_t)*ip >= (uintptr_t)guard_small_end)
		return false;
	*ip = (greg_t)(uintptr_t)guard_small_fault;
	return true;
}

/* Its last word is stored at once, or it is not for here. */
static inline bool is_small(const void *dst, size_t len)
{
	return len - 1 < SMALL &&
	       (len < STORE_TAIL ||
		store_is_word((const uint8_t *)dst + len - STORE_TAIL));
}
#else
static inline int guard_small(void *dst, const void *src, size_t len)
{
	(void)dst;
	(void)src;
	(void)len;
	return -ENOSYS;
}

static inline bool is_small(const void *dst, size_t len)
{
	(void)dst;
	(void)len;
	return false;
}

static bool small_caught(ucontext_t *uc)
{
	(void)uc;
	return false;
}
#endif

/*
 * The way back is the compiler's own: the signal's mask is set right by
 * fault_caught(), so nothing of sigsetjmp(3) is needed but three words. clang has
 * none but for x86.
 */
#if defined(__clang__) && !defined(__x86_64__)
typedef jmp_buf guard_back;
#define guard_set(back) _setjmp(back)
#define guard_return(back) _longjmp(back, 1)
#else
typedef void *guard_back[5];
#define guard_set(back) __builtin_setjmp(back)
#define guard_return(back) __builtin_longjmp(back, 1)
#endif

struct guard {
	guard_back back;
	uintptr_t from, to;
};

/* Read in a signal handler, where no TLS can be allocated. */
#define TLS static _Thread_local __attribute__((tls_model("initial-exec")))

TLS struct guard *volatile guard;
TLS enum { MASK_UNKNOWN, MASK_OPEN, MASK_BLOCKS } mask;

static struct sigaction before_segv, before_bus; /* what was there before us */

static bool has_handler(const struct sigaction *sa)
{
	/* With SA_SIGINFO, too, which programs leave set. */
	return sa->sa_handler != SIG_DFL && sa->sa_handler != SIG_IGN;
}

/* What would have happened without us. */
static void forward_signal(int sig, siginfo_t *info, void *context,
			   struct sigaction *before)
{
	const struct sigaction was = *before;
	const struct sigaction dfl = { .sa_handler = SIG_DFL };

	if (was.sa_flags & (int)SA_RESETHAND)
		*before = dfl;
	if (has_handler(&was) && was.sa_flags & SA_SIGINFO) {
		was.sa_sigaction(sig, info, context);
	} else if (has_handler(&was)) {
		was.sa_handler(sig);
	} else if (info->si_code > 0) {
		/* A fault: it happens again, and takes its default course. */
		sigaction(sig, &dfl, NULL);
	} else if (was.sa_handler == SIG_DFL) {
		/* Somebody sent it: it is sent again. */
		sigaction(sig, &dfl, NULL);
		syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), sig, info);
	}
}

static void fault_caught(int sig, siginfo_t *info, void *context)
{
	struct sigaction *before = sig == SIGBUS ? &before_bus : &before_segv;
	const uintptr_t at = (uintptr_t)info->si_addr;
	const bool theirs = info->si_code <= 0 ||
			    (sig == SIGSEGV && info->si_code == SEGV_ACCERR &&
			     has_handler(before));
	struct guard *g = guard;
	ucontext_t *uc = context;

	if (!theirs && small_caught(uc))
		return;
	if (theirs || !g || at < g->from || at >= g->to) {
		forward_signal(sig, info, context, before);
		return;
	}
	pthread_sigmask(SIG_SETMASK, &uc->uc_sigmask, NULL);
	guard_return(g->back);
}

static void take_signal(int sig, struct sigaction *before)
{
	struct sigaction sa;

	if (sigaction(sig, NULL, before))
		return;
	/* As the handler there was set up, if there was one. */
	sa = *before;
	if (!has_handler(before)) {
		sigemptyset(&sa.sa_mask);
		sa.sa_flags = SA_ONSTACK;
	}
	sa.sa_flags = (sa.sa_flags & ~(int)SA_RESETHAND) | SA_SIGINFO;
	sa.sa_sigaction = fault_caught;
	sigaction(sig, &sa, NULL);
}

static void install_handlers(void)
{
	take_signal(SIGSEGV, &before_segv);
	take_signal(SIGBUS, &before_bus);
}

void guard_install(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, install_handlers);
}

bool guard_is_alone(int sig, const struct sigaction *sa)
{
	return sa->sa_flags & SA_SIGINFO && sa->sa_sigaction == fault_caught &&
	       !has_handler(sig == SIGBUS ? &before_bus : &before_segv);
}

static void fault_signals(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGSEGV);
	sigaddset(set, SIGBUS);
}

/* A fault whose signal is blocked kills. Asked once in each thread. */
__attribute__((noinline)) static bool blocks(void)
{
	sigset_t set;

	if (mask == MASK_UNKNOWN) {
		pthread_sigmask(SIG_BLOCK, NULL, &set);
		mask = sigismember(&set, SIGSEGV) || sigismember(&set, SIGBUS) ?
			       MASK_BLOCKS :
			       MASK_OPEN;
	}
	return mask == MASK_BLOCKS;
}

int guard_run(void (*fn)(void *), void *arg, const void *p, size_t len)
{
	const bool blocked = mask != MASK_OPEN && blocks();
	/* A signal handler may have come in between: its end is not ours. */
	struct guard *volatile outer = guard;
	struct guard g; /* not zeroed: that would cost more than the rest */
	sigset_t open, old;
	int err = 0;

	if (blocked) {
		fault_signals(&open);
		pthread_sigmask(SIG_UNBLOCK, &open, &old);
	}
	g.from = (uintptr_t)p;
	g.to = g.from + len;
	if (!guard_set(g.back)) {
		guard = &g;
		atomic_signal_fence(memory_order_seq_cst);
		fn(arg);
		atomic_signal_fence(memory_order_seq_cst);
	} else {
		err = -EFAULT;
	}
	guard = outer;
	if (blocked)
		pthread_sigmask(SIG_SETMASK, &old, NULL);
	return err;
}

struct copy {
	void *dst;
	const void *src;
	size_t len;
};

static void copy_run(void *arg)
{
	const struct copy *c = arg;

	store_tail_last(c->dst, c->src, c->len);
}

__attribute__((noinline)) static int copy_any(void *dst, const void *src,
					      size_t len, const void *p)
{
	struct copy c = { dst, src, len };

	return guard_run(copy_run, &c, p, len);
}

int guard_copy(void *dst, const void *src, size_t len, const void *p)
{
	if (is_small(dst, len) && mask == MASK_OPEN)
		return guard_small(dst, src, len);
	return copy_any(dst, src, len, p);
}
