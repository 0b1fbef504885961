# cmake -DIN=FILE -DOUT=FILE -DNAME=NAME -P embed.cmake: a C source with FILE's
# bytes, ended by a zero, as the array NAME.
file(READ ${IN} bytes HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
string(REGEX REPLACE "(................................................................................)"
  "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "extern const char ${NAME}[];\nconst char ${NAME}[] = {\n${bytes}0\n};\n")
