# generate.awk - a linker version script and the stubs, from an export table
#
#	awk -v out=map|stubs -v code=EOPNOTSUPP -f generate.awk ibverbs.txt
#
# Nodes of one family (IBVERBS_, RDMACM_) inherit from the one before them, as
# the distribution's do; PRIVATE nodes stand alone. A public stub is a weak
# definition under the plain name, so that a real function replaces it by being
# linked; every other stub has a local name and is given its versions with
# .symver. Stubs return long, since a caller expecting a 64-bit -1 (rrecv) must
# not see the upper half of a register undefined.

function fail(msg)
{
	print FILENAME ":" FNR ": " msg > "/dev/stderr"
	failed = 1
	exit 1
}

# The order of two nodes: public before private, then by number.
function rank(node,   part)
{
	split(node, part, /[._]/)
	if (node ~ /PRIVATE/)
		return 1e6 + part[3]
	return part[2] * 1000 + part[3]
}

function body(how,   part, err)
{
	err = code
	if (split(how, part, "/") == 2)
		err = part[2]
	if (part[1] == "errno")
		return "return " err ";"
	if (part[1] == "-errno")
		return "return -" err ";"
	if (part[1] == "-1" || part[1] == "NULL")
		return "errno = " err "; return " part[1] ";"
	if (part[1] == "0")
		return "return 0;"
	if (part[1] == "str")
		return "return \"unknown\";"
	if (part[1] == "void")
		return ""
	fail("unknown way to fail: " how)
}

function type(how)
{
	if (how ~ /^NULL/)
		return "void *"
	if (how == "str")
		return "const char *"
	return how == "void" ? "void " : "long "
}

# Whether the version script, not .symver, gives the name its version.
function plain(kind)
{
	return kind == "public" || kind == "absent"
}

/^#/ || NF == 0 {
	next
}

NF != 4 {
	fail("expected four columns")
}

$3 !~ /^(public|absent|private|own|legacy)$/ {
	fail("unknown kind: " $3)
}

{
	n = split($2, node, ",")
	for (i = 1; i <= n; i++) {
		sub(/^P/, "IBVERBS_PRIVATE_", node[i])
		if (seen[$1, node[i]]++)
			fail($1 "@" node[i] " appears twice")
		if (!(node[i] in names))
			nodes[++nnodes] = node[i]
		# Listed in the map only where the linker should choose the
		# version; .symver names carry their own.
		names[node[i]] = names[node[i]] \
			(plain($3) ? "\t\t" $1 ";\n" : "")
		if (!plain($3))
			symver[node[i]] = 1
	}
	if ($3 == "own")
		next
	if (plain($3)) {
		if (n != 1)
			fail("a public symbol has one node")
		stubs = stubs "\nWEAK " type($4) $1 "(void)\n{\n\t" body($4) "\n}\n"
		next
	}
	for (i = 1; i <= n; i++) {
		at = ($3 != "legacy" && i == 1) ? "@@" : "@"
		stub = "stub_" $1 "_" ++serial
		stubs = stubs "\n" type($4) stub "(void);\n" \
			type($4) stub "(void)\n{\n\t" body($4) "\n}\n" \
			"__asm__(\".symver " stub "," $1 at node[i] "\");\n"
	}
}

# "local: *" hides everything not listed, but also, where it stands, names that
# .symver put into that same node: it goes to a node without any.
function map(   i, j, t, prev, hidden)
{
	for (i = 2; i <= nnodes; i++)
		for (j = i; j > 1 && rank(nodes[j]) < rank(nodes[j - 1]); j--) {
			t = nodes[j]
			nodes[j] = nodes[j - 1]
			nodes[j - 1] = t
		}
	for (i = 1; i <= nnodes; i++) {
		print nodes[i] " {"
		if (names[nodes[i]] != "")
			printf "\tglobal:\n%s", names[nodes[i]]
		if (!hidden && !symver[nodes[i]]) {
			print "\tlocal:\n\t\t*;"
			hidden = 1
		}
		print "}" (prev != "" ? " " prev : "") ";\n"
		prev = nodes[i + 1] ~ /PRIVATE/ ? "" : nodes[i]
	}
	if (!hidden)
		fail("no node can hold local: *")
}

END {
	if (failed)
		exit 1
	print "/* Generated from the table in abi/. */\n"
	if (out == "map") {
		map()
	} else {
		print "#include <errno.h>\n#include <stddef.h>\n"
		print "#pragma GCC diagnostic ignored \"-Wmissing-prototypes\""
		print "#define WEAK __attribute__((weak))"
		print stubs
	}
}
