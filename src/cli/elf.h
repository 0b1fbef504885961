/*
 * elf.h - what the loader will do with a program, read from its file
 */
#ifndef SOFTHCA_CLI_ELF_H
#define SOFTHCA_CLI_ELF_H

#include <stdbool.h>
#include <stddef.h>

struct elf_need {
	const char *lib; /* the library's soname */
	const char *version; /* the node it must have */
	const char *symbol; /* a symbol wanted from it; NULL: only the node */
};

/* What kind of file elf_kind() has found. */
enum elf_kind {
	ELF_NONE, /* a script, or something else */
	ELF_HERE, /* for this machine, of 64 bits, glibc or none */
	ELF_32BIT,
	ELF_ELSEWHERE, /* of another processor */
	ELF_MUSL, /* started by the loader of another C library */
};

struct elf {
	void *map;
	size_t size;
	const char *interp; /* the loader that starts it; NULL: none does */
	const char *rpath; /* DT_RPATH, or NULL */
	bool go; /* written in Go, which makes its system calls itself */
	struct elf_need *need;
	size_t need_count;
	size_t lib_count; /* DT_NEEDED */
	const char *lib[128];
};

/*
 * Maps a 64-bit ELF file of this machine's byte order and finds in it the
 * versioned references to libraries named in sonames (NULL-terminated).
 * Returns 0, -ENOEXEC if it is something else or damaged, or -errno.
 */
int elf_open(struct elf *e, const char *path, const char *const *sonames);
void elf_close(struct elf *e);

/* Of the file at path; one that cannot be read is ELF_NONE. */
enum elf_kind elf_kind(const char *path);

#endif
