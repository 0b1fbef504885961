# Applied to arch/x86/um/user-offsets.c. The number of bytes that user-mode
# Linux keeps of a task's extended processor state ends with AVX-512; on a
# processor with AMX the host has 11008 bytes of it and refuses less, so that no
# program starts. CONFIG_KERNEL_STACK_ORDER makes room for it on the stack.
s/DEFINE_LONGS(HOST_FP_SIZE, 2696)/DEFINE_LONGS(HOST_FP_SIZE, 16384)/
