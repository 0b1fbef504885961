/*
 * cpu.h - a pause for loops that wait for another CPU
 */
#ifndef SOFTHCA_BASE_CPU_H
#define SOFTHCA_BASE_CPU_H

static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	/* yield does nothing on most; this waits for some 10 ns. */
	__asm__ volatile("isb" ::: "memory");
#endif
}

#endif
