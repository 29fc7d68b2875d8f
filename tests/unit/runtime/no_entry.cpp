// A valid shared library that is no backend.
extern "C" __attribute__((visibility("default"))) int pariskv_backend_not_the_entry() { return 1; }
