/*
 * elf.c - what the loader will do with a program, read from its file
 *
 * Uses the section headers, which every file of a distribution keeps, and
 * trusts no offset in the file before checking it against the file's size.
 */
#include "cli/elf.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A program has some hundred; this bounds the work on a damaged file. */
#define MAX_NEEDS 16384

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define ELFDATA_HERE ELFDATA2LSB
#else
#define ELFDATA_HERE ELFDATA2MSB
#endif

/* count objects of a type at offset off, or NULL. */
#define AT(e, off, count, type)                                                \
	((const type *)elf_at(e, off, count, sizeof(type), _Alignof(type)))

static const void *elf_at(const struct elf *e, uint64_t off, uint64_t count,
			  size_t size, size_t align)
{
	if (off > e->size || count > (e->size - off) / size || off % align)
		return NULL;
	return (const char *)e->map + off;
}

/* A string of the string table in section str that ends inside it. */
static const char *elf_string(const struct elf *e, const Elf64_Shdr *str,
			      uint64_t off)
{
	const char *s;

	if (str->sh_offset > e->size ||
	    str->sh_size > e->size - str->sh_offset || off >= str->sh_size)
		return NULL;
	s = (const char *)e->map + str->sh_offset + off;
	return memchr(s, '\0', str->sh_size - off) ? s : NULL;
}

static const Elf64_Shdr *elf_section(const Elf64_Shdr *sh, size_t n,
				     uint32_t type)
{
	size_t i;

	for (i = 0; i < n; i++)
		if (sh[i].sh_type == type)
			return &sh[i];
	return NULL;
}

/* Whether there is a section of that name. */
static bool has_section(const struct elf *e, const Elf64_Ehdr *eh,
			const Elf64_Shdr *sh, const char *name)
{
	const size_t len = strlen(name) + 1;
	const Elf64_Shdr *str;
	const char *s;

	if (eh->e_shstrndx >= eh->e_shnum)
		return false;
	str = &sh[eh->e_shstrndx];
	for (size_t i = 0; i < eh->e_shnum; i++) {
		if (sh[i].sh_name >= str->sh_size ||
		    len > str->sh_size - sh[i].sh_name)
			continue;
		s = AT(e, str->sh_offset + sh[i].sh_name, len, char);
		if (s && !memcmp(s, name, len))
			return true;
	}
	return false;
}

static int read_dynamic(struct elf *e, const Elf64_Shdr *sec,
			const Elf64_Shdr *str)
{
	uint64_t i, n = sec->sh_size / sizeof(Elf64_Dyn);
	const Elf64_Dyn *d = AT(e, sec->sh_offset, n, Elf64_Dyn);
	const char *s;

	if (!d)
		return -ENOEXEC;
	for (i = 0; i < n && d[i].d_tag != DT_NULL; i++) {
		if (d[i].d_tag == DT_RPATH)
			e->rpath = elf_string(e, str, d[i].d_un.d_val);
		if (d[i].d_tag != DT_NEEDED || e->lib_count == 128)
			continue;
		s = elf_string(e, str, d[i].d_un.d_val);
		if (s)
			e->lib[e->lib_count++] = s;
	}
	return 0;
}

static int add_need(struct elf *e, const char *lib, const char *version,
		    const char *symbol)
{
	struct elf_need *n;

	if (e->need_count == MAX_NEEDS)
		return -ENOEXEC;
	n = reallocarray(e->need, e->need_count + 1, sizeof(*n));
	if (!n)
		return -ENOMEM;
	e->need = n;
	n[e->need_count++] = (struct elf_need){ lib, version, symbol };
	return 0;
}

/* The symbols whose version index is other, in .dynsym and .gnu.version. */
static int add_symbols(struct elf *e, const Elf64_Shdr *sh, size_t n,
		       const char *lib, const char *version, uint16_t other)
{
	const Elf64_Shdr *dynsym = elf_section(sh, n, SHT_DYNSYM);
	const Elf64_Shdr *versym = elf_section(sh, n, SHT_GNU_versym);
	const Elf64_Half *v;
	const Elf64_Sym *sym;
	const char *name;
	uint64_t i, count;
	int err;

	if (!dynsym || !versym || dynsym->sh_link >= n)
		return -ENOEXEC;
	count = dynsym->sh_size / sizeof(*sym);
	sym = AT(e, dynsym->sh_offset, count, Elf64_Sym);
	v = AT(e, versym->sh_offset, count, Elf64_Half);
	if (!sym || !v)
		return -ENOEXEC;
	for (i = 0; i < count; i++) {
		if ((v[i] & 0x7fff) != other || sym[i].st_shndx != SHN_UNDEF)
			continue;
		name = elf_string(e, &sh[dynsym->sh_link], sym[i].st_name);
		if (!name)
			return -ENOEXEC;
		err = add_need(e, lib, version, name);
		if (err)
			return err;
	}
	return 0;
}

static int read_needs(struct elf *e, const Elf64_Shdr *sh, size_t n,
		      const char *const *sonames)
{
	const Elf64_Shdr *sec = elf_section(sh, n, SHT_GNU_verneed), *str;
	const char *lib, *version;
	const Elf64_Vernaux *aux;
	const Elf64_Verneed *vn;
	uint64_t off, aux_off;
	unsigned int i, j, k;
	int err;

	if (!sec)
		return 0;
	if (sec->sh_link >= n)
		return -ENOEXEC;
	str = &sh[sec->sh_link];
	off = sec->sh_offset;
	for (i = 0; i < sec->sh_info; i++) {
		vn = AT(e, off, 1, Elf64_Verneed);
		lib = vn ? elf_string(e, str, vn->vn_file) : NULL;
		if (!lib)
			return -ENOEXEC;
		for (k = 0; sonames[k] && strcmp(sonames[k], lib); k++)
			;
		aux_off = off + vn->vn_aux;
		for (j = 0; sonames[k] && j < vn->vn_cnt; j++) {
			aux = AT(e, aux_off, 1, Elf64_Vernaux);
			version =
				aux ? elf_string(e, str, aux->vna_name) : NULL;
			if (!version)
				return -ENOEXEC;
			err = add_need(e, lib, version, NULL);
			if (!err)
				err = add_symbols(e, sh, n, lib, version,
						  aux->vna_other & 0x7fff);
			if (err)
				return err;
			if (!aux->vna_next)
				break;
			aux_off += aux->vna_next;
		}
		if (!vn->vn_next)
			break;
		off += vn->vn_next;
	}
	return 0;
}

static int read_elf(struct elf *e, const char *const *sonames)
{
	const Elf64_Ehdr *eh = AT(e, 0, 1, Elf64_Ehdr);
	const Elf64_Shdr *sh, *dyn;
	const Elf64_Phdr *ph;
	unsigned int i;
	int err;

	if (!eh || memcmp(eh->e_ident, ELFMAG, SELFMAG) ||
	    eh->e_ident[EI_CLASS] != ELFCLASS64 ||
	    eh->e_ident[EI_DATA] != ELFDATA_HERE ||
	    eh->e_shentsize != sizeof(*sh) ||
	    (eh->e_phnum && eh->e_phentsize != sizeof(*ph)))
		return -ENOEXEC;
	ph = AT(e, eh->e_phoff, eh->e_phnum, Elf64_Phdr);
	sh = AT(e, eh->e_shoff, eh->e_shnum, Elf64_Shdr);
	if (!ph || !sh)
		return -ENOEXEC;
	for (i = 0; i < eh->e_phnum; i++)
		if (ph[i].p_type == PT_INTERP) {
			e->interp = AT(e, ph[i].p_offset, ph[i].p_filesz, char);
			if (!e->interp ||
			    !memchr(e->interp, '\0', ph[i].p_filesz))
				return -ENOEXEC;
		}
	e->go = has_section(e, eh, sh, ".go.buildinfo");
	dyn = elf_section(sh, eh->e_shnum, SHT_DYNAMIC);
	if (!dyn)
		return 0;
	if (dyn->sh_link >= eh->e_shnum)
		return -ENOEXEC;
	err = read_dynamic(e, dyn, &sh[dyn->sh_link]);
	return err ? err : read_needs(e, sh, eh->e_shnum, sonames);
}

int elf_open(struct elf *e, const char *path, const char *const *sonames)
{
	struct stat st;
	int fd, err;

	memset(e, 0, sizeof(*e));
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st)) {
		err = -errno;
		goto out;
	}
	err = -ENOEXEC;
	if (!S_ISREG(st.st_mode) || st.st_size < (off_t)sizeof(Elf64_Ehdr))
		goto out;
	e->size = (size_t)st.st_size;
	e->map = mmap(NULL, e->size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (e->map == MAP_FAILED) {
		e->map = NULL;
		err = -errno;
		goto out;
	}
	err = read_elf(e, sonames);
	if (err)
		elf_close(e);
out:
	close(fd);
	return err;
}

void elf_close(struct elf *e)
{
	if (e->map)
		munmap(e->map, e->size);
	free(e->need);
	memset(e, 0, sizeof(*e));
}

/* The first bytes of an ELF file, which are the same in both classes. */
struct start {
	unsigned char ident[EI_NIDENT];
	Elf64_Half type, machine;
};

static bool read_start(const char *path, struct start *s)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	ssize_t got = fd < 0 ? -1 : read(fd, s, sizeof(*s));

	if (fd >= 0)
		close(fd);
	return got == (ssize_t)sizeof(*s) && !memcmp(s->ident, ELFMAG, SELFMAG);
}

enum elf_kind elf_kind(const char *path)
{
	static const char *const none[] = { NULL };
	enum elf_kind kind = ELF_HERE;
	struct start it, own;
	struct elf e;

	if (!read_start(path, &it))
		return ELF_NONE;
	if (read_start("/proc/self/exe", &own) &&
	    (it.ident[EI_DATA] != own.ident[EI_DATA] ||
	     (it.ident[EI_CLASS] == own.ident[EI_CLASS] &&
	      it.machine != own.machine)))
		return ELF_ELSEWHERE;
	if (it.ident[EI_CLASS] != ELFCLASS64)
		return ELF_32BIT;
	if (elf_open(&e, path, none))
		return ELF_HERE;
	if (e.interp && strstr(e.interp, "/ld-musl-"))
		kind = ELF_MUSL;
	elf_close(&e);
	return kind;
}
