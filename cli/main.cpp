#include "cli/commands.h"

int main(int argc, char** argv) { return tilewise::cli::run_command_line(argc, argv); }
