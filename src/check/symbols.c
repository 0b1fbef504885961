/*
 * symbols.c - the function that an address is in, by its file's symbol table
 *
 * dladdr(3) knows exported functions alone, and a program exports few of its
 * own. The file is read when there is something to report, and whatever it says
 * is checked: it may be another one by now.
 */
#include "check_internal.h"

#include "base/sys.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_MAX (64u << 20) /* bytes of a table that are read */
#define SECTIONS_MAX 4096u

typedef ElfW(Ehdr) ehdr;
typedef ElfW(Shdr) shdr;
typedef ElfW(Sym) sym;

static bool read_at(int fd, void *to, size_t len, uint64_t at)
{
	return at <= INT64_MAX && sys_pread(fd, to, len, at) == (ssize_t)len;
}

/* A section's bytes, allocated; NULL: it has none, or too many. */
static void *read_section(int fd, const shdr *s)
{
	void *p = s->sh_size && s->sh_size <= TABLE_MAX ? malloc(s->sh_size) :
							  NULL;

	if (p && !read_at(fd, p, s->sh_size, s->sh_offset)) {
		free(p);
		p = NULL;
	}
	return p;
}

static void name_of(const sym *syms, size_t n, const char *names, size_t size,
		    uint64_t value, char *out, size_t room)
{
	for (size_t i = 0; i < n; i++) {
		const sym *s = &syms[i];

		if ((s->st_info & 0xf) != STT_FUNC || s->st_name >= size ||
		    value < s->st_value || value - s->st_value >= s->st_size)
			continue;
		snprintf(out, room, "%.*s", (int)(size - s->st_name),
			 names + s->st_name);
		return;
	}
}

static void look_up_symbol(int fd, const ehdr *h, uint64_t value, char *out,
			   size_t room)
{
	const size_t size = h->e_shnum * sizeof(shdr);
	shdr *sections = malloc(size);
	bool found = false;

	if (sections && read_at(fd, sections, size, h->e_shoff))
		for (unsigned i = 0; i < h->e_shnum && !found; i++) {
			const shdr *s = &sections[i];
			sym *syms = NULL;
			char *names = NULL;

			found = s->sh_type == SHT_SYMTAB &&
				s->sh_link < h->e_shnum;
			if (found) {
				syms = read_section(fd, s);
				names = read_section(fd, &sections[s->sh_link]);
			}
			if (syms && names)
				name_of(syms, s->sh_size / sizeof(sym), names,
					sections[s->sh_link].sh_size, value,
					out, room);
			free(syms);
			free(names);
		}
	free(sections);
}

uint64_t check_symbol(const char *file, uint64_t base, uint64_t pc, char *out,
		      size_t room)
{
	const int fd = sys_open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
	uint64_t value = pc - base;
	ehdr h;

	*out = '\0';
	if (fd < 0)
		return value;
	if (read_at(fd, &h, sizeof(h), 0) &&
	    !memcmp(h.e_ident, ELFMAG, SELFMAG) &&
	    h.e_ident[EI_CLASS] ==
		    (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32)) {
		/* What is not moved has its addresses in the file. */
		if (h.e_type == ET_EXEC)
			value = pc;
		if (h.e_shentsize == sizeof(shdr) && h.e_shnum <= SECTIONS_MAX)
			look_up_symbol(fd, &h, value, out, room);
	}
	sys_close(fd);
	return value;
}
