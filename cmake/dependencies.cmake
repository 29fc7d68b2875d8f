# What core needs. The tools and the tests look for their own libraries in their own folders.
find_package(Threads REQUIRED)

# Shared on Debian: its archives are no choice for libpariskv.so, because libabsl_base, cordz_functions
# and raw_hash_set there keep thread-local data in the form for executables (R_X86_64_TPOFF32).
find_package(absl REQUIRED)

# xxHash is used from its header alone, so it is no dependency of the installed library.
find_path(PKV_XXHASH_INCLUDE_DIR xxhash.h REQUIRED)

# Of backends/cpu: instruction sets chosen at run time, and threads.
find_package(hwy 1.0.3 REQUIRED)
find_package(TBB REQUIRED)
