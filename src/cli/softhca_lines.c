/*
 * softhca_lines.c - source lines of addresses, from debug information
 *
 * A program of its own, softhca-lines: what reads DWARF is not to be in the
 * programs that softhca is loaded into. check/lines.c starts it when there is a
 * finding to report, and gives it up when it takes too long; cli/places.c does for
 * a process that runs.
 *
 * Each line of stdin is "BASE PC FILE": an address in a file that is mapped from
 * BASE on, both in hexadecimal. For each function that PC is in, the innermost
 * first and each inlined into the next, there is a line of stdout:
 * "N<tab>FUNCTION<tab>SOURCE:LINE", where N is the line of stdin, from 0. Without
 * debug information, which may be in a file of its own that is found by its
 * build ID, SOURCE:LINE is empty. The last line is ".".
 *
 * Its argument is how many seconds it may take. With a second one, the number of a
 * process, it reads nothing, and N is a thread of that (softhca_stacks.c). It may
 * begin with all signals blocked.
 */
#include "softhca_lines.h"

#include <dwarf.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ASKED_MOST 256u
#define INLINED_MOST 12u /* functions of one address */

struct asked {
	uint64_t base, pc;
	char *file;
};

static unsigned read_asked(struct asked *a)
{
	char line[PATH_MAX + 64];
	unsigned n = 0;
	int file;

	for (; n < ASKED_MOST && fgets(line, sizeof(line), stdin); n++) {
		line[strcspn(line, "\n")] = '\0';
		file = 0;
		if (sscanf(line, "%" SCNx64 " %" SCNx64 " %n", &a[n].base,
			   &a[n].pc, &file) < 2 ||
		    !file)
			continue;
		a[n].file = strdup(line + file);
	}
	return n;
}

/* Each file once. */
static void report_files(Dwfl *dwfl, const struct asked *a, unsigned n)
{
	bool seen;

	dwfl_report_begin(dwfl);
	for (unsigned i = 0; i < n; i++) {
		seen = !a[i].file;
		for (unsigned k = 0; k < i && !seen; k++)
			seen = a[k].file && a[k].base == a[i].base &&
			       !strcmp(a[k].file, a[i].file);
		if (!seen)
			dwfl_report_elf(dwfl, a[i].file, a[i].file, -1,
					a[i].base, false);
	}
	dwfl_report_end(dwfl, NULL, NULL);
}

/* dir is where the compiler ran. What is not here any more has the name that the
 * compiler knew it by. */
static void put_line(FILE *to, unsigned i, const char *function,
		     const char *dir, const char *source, int line)
{
	char path[2 * PATH_MAX], real[PATH_MAX];

	fprintf(to, "%u\t%s\t", i, function ? function : "");
	if (source && line > 0) {
		snprintf(path, sizeof(path), "%s%s%s",
			 dir && source[0] != '/' ? dir : "",
			 dir && source[0] != '/' ? "/" : "", source);
		fprintf(to, "%s:%d", realpath(path, real) ? real : path, line);
	}
	putc('\n', to);
}

/*
 * The function that an address is in, and what is inlined around it there, the
 * innermost last; returns how many. dwarf_getscopes(3) does not find all of what
 * -flto has inlined from other units.
 */
static unsigned functions_of(Dwarf_Die *in, uint64_t pc, Dwarf_Die *out,
			     unsigned n)
{
	Dwarf_Die die;
	int left = dwarf_child(in, &die);

	for (; !left; left = dwarf_siblingof(&die, &die)) {
		switch (dwarf_tag(&die)) {
		case DW_TAG_subprogram:
		case DW_TAG_inlined_subroutine:
			if (dwarf_haspc(&die, pc) <= 0)
				break;
			if (n == INLINED_MOST)
				return n;
			out[n] = die;
			return functions_of(&die, pc, out, n + 1);
		case DW_TAG_lexical_block:
			if (dwarf_haspc(&die, pc) > 0)
				return functions_of(&die, pc, out, n);
			break;
		case DW_TAG_namespace: {
			const unsigned more = functions_of(&die, pc, out, n);

			if (more > n)
				return more;
			break;
		}
		default:
			break;
		}
	}
	return n;
}

static int number_of(Dwarf_Die *die, unsigned name)
{
	Dwarf_Attribute attr;
	Dwarf_Word n;

	if (dwarf_formudata(dwarf_attr(die, name, &attr), &n) || n > INT_MAX)
		return -1;
	return (int)n;
}

/* The unit of compilation that an address is in; clang writes no table of these
 * (.debug_aranges). */
static Dwarf_Die *unit_of(Dwfl_Module *mod, uint64_t pc, Dwarf_Addr *bias)
{
	Dwarf_Die *cu = dwfl_module_addrdie(mod, pc, bias);

	while (!cu && (cu = dwfl_module_nextcu(mod, cu, bias)))
		if (dwarf_haspc(cu, pc - *bias) > 0)
			return cu;
	return cu;
}

/* Where the address, and then each call that was inlined, stands. */
static unsigned put_functions(FILE *to, unsigned i, Dwarf_Die *cu, uint64_t pc)
{
	Dwarf_Die function[INLINED_MOST], split;
	Dwarf_Files *files = NULL;
	Dwarf_Attribute attr;
	const char *dir, *source = NULL;
	Dwarf_Line *at;
	size_t nfiles = 0;
	int line = 0, file, first;
	Dwarf_Half version;
	uint8_t kind;
	unsigned n;

	at = dwarf_getsrc_die(cu, pc);
	if (at) {
		source = dwarf_linesrc(at, NULL, NULL);
		dwarf_lineno(at, &line);
	}
	dir = dwarf_formstring(dwarf_attr(cu, DW_AT_comp_dir, &attr));
	/* -gsplit-dwarf: most of it is in another file. */
	if (dwarf_cu_info(cu->cu, &version, &kind, NULL, &split, NULL, NULL,
			  NULL))
		return 0;
	if (kind == DW_UT_skeleton && dwarf_tag(&split) == DW_TAG_compile_unit)
		cu = &split;
	first = version < 5; /* file of the unit's table */
	n = functions_of(cu, pc, function, 0);
	if (dwarf_getsrcfiles(cu, &files, &nfiles))
		files = NULL;
	for (unsigned k = n; k-- > 0;) {
		put_line(to, i, dwarf_diename(&function[k]), dir, source, line);
		file = number_of(&function[k], DW_AT_call_file);
		line = number_of(&function[k], DW_AT_call_line);
		source =
			files && file >= first && (size_t)file < nfiles ?
				dwarf_filesrc(files, (size_t)file, NULL, NULL) :
				NULL;
	}
	return n;
}

bool lines_put(FILE *to, unsigned id, Dwfl_Module *mod, uint64_t pc)
{
	Dwarf_Addr bias = 0;
	Dwarf_Die *cu = unit_of(mod, pc, &bias);

	return cu && put_functions(to, id, cu, pc - bias);
}

static void put_address(unsigned i, Dwfl_Module *mod, uint64_t pc)
{
	const char *name;

	if (lines_put(stdout, i, mod, pc))
		return;
	name = dwfl_module_addrname(mod, pc);
	if (name)
		put_line(stdout, i, name, NULL, NULL, 0);
}

/* The addresses that are asked for. */
static bool answer(void)
{
	static const Dwfl_Callbacks calls = {
		.find_elf = dwfl_build_id_find_elf,
		.find_debuginfo = dwfl_standard_find_debuginfo,
		.section_address = dwfl_offline_section_address,
	};
	static struct asked asked[ASKED_MOST];
	const unsigned n = read_asked(asked);
	Dwfl *dwfl = dwfl_begin(&calls);
	Dwfl_Module *mod;

	if (!dwfl)
		return false;
	report_files(dwfl, asked, n);
	for (unsigned i = 0; i < n; i++) {
		mod = asked[i].file ? dwfl_addrmodule(dwfl, asked[i].pc) : NULL;
		if (mod)
			put_address(i, mod, asked[i].pc);
	}
	return true;
}

static void limit_time(const char *seconds)
{
	sigset_t none;

	signal(SIGALRM, SIG_DFL);
	signal(SIGPIPE, SIG_DFL);
	alarm((unsigned)strtoul(seconds, NULL, 10));
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

int main(int argc, char **argv)
{
	limit_time(argc > 1 ? argv[1] : "10");
	if (argc > 2)
		stacks_put((pid_t)atol(argv[2]));
	else if (!answer())
		return 1;
	puts(".");
	/* What it holds goes with the process. */
	return fflush(stdout) || ferror(stdout);
}
