#include <pariskv/pariskv.hpp>
#include <string>

int main() { return std::string(pkv_version()) != "0.1.0"; }
