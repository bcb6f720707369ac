// kernctl completion: the scripts are run by the shells that are there.
#include <sys/wait.h>

#include <cstdio>
#include <fstream>

#include "tests/unit/client_cli_fixture.h"

namespace kernd::cli {
namespace {

// Standard output and error of a shell command, and its exit code.
Outcome Shell(const std::string& command) {
  std::FILE* const pipe = ::popen((command + " 2>&1").c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  std::string out;
  for (int c; pipe != nullptr && (c = std::fgetc(pipe)) != EOF;) out.push_back(static_cast<char>(c));
  const int status = pipe == nullptr ? -1 : ::pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, out, ""};
}

class CompletionTest : public CliTest {
 protected:
  // Writes the script of `shell` to a file.
  std::string Script(const std::string& shell) {
    const Outcome outcome = Kernctl({"completion", shell});
    EXPECT_EQ(outcome.code, kOk) << outcome.err;
    std::ofstream(Path(shell)) << outcome.out;
    return Path(shell);
  }

  // What bash offers for the last of `words`.
  std::string Offered(const std::string& words) {
    std::ofstream(Path("ask"))
        << ". " << Script("bash") << "\nCOMP_WORDS=(kernctl " << words
        << ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_kernctl\nprintf '%s ' \"${COMPREPLY[@]}\"\n";
    return Shell("bash " + Path("ask")).out;
  }
};

TEST_F(CompletionTest, BashOffersCommandsOptionsChoicesAndFiles) {
  if (Shell("bash --version").code != 0) GTEST_SKIP() << "SKIPPED: no bash";
  const Outcome parsed = Shell("bash -n " + Script("bash"));
  EXPECT_EQ(parsed.code, 0) << parsed.out;
  EXPECT_EQ(Offered("ma"), "matmul ");
  EXPECT_EQ(Offered("verify --qu"), "--quick ");
  EXPECT_EQ(Offered("--json matmul --transpose-"), "--transpose-a --transpose-b ");
  EXPECT_EQ(Offered("matmul --endp"), "--endpoint ") << "global options follow a command as well";
  EXPECT_EQ(Offered("matmul --activation \"\""), "none relu gelu silu ");
  EXPECT_EQ(Offered("attention --layout p"), "packed ");
  EXPECT_EQ(Offered("completion \"\"").find("packed"), std::string::npos);
  const std::string file = File("tensor.npy", {1, 2, 3, 4});
  EXPECT_EQ(Offered("matmul --a " + Path("ten")), file + " ");
  EXPECT_EQ(Offered("matmul --alpha --"), " ") << "a number is awaited";
}

TEST_F(CompletionTest, OtherShellsTakeTheirScripts) {
  const std::string zsh = Script("zsh"), fish = Script("fish");
  std::ostringstream zsh_text, fish_text;
  zsh_text << std::ifstream(zsh).rdbuf();
  fish_text << std::ifstream(fish).rdbuf();
  EXPECT_THAT(zsh_text.str(), testing::StartsWith("#compdef kernctl\n"));
  EXPECT_THAT(zsh_text.str(), HasSubstr("'--activation[act]:value:(none relu gelu silu)'"));
  EXPECT_THAT(zsh_text.str(), HasSubstr("'--a[A \\[batch..., M, K\\]]:file:_files'"));
  EXPECT_THAT(fish_text.str(), HasSubstr("'__fish_seen_subcommand_from attention' -l causal -d "));
  EXPECT_THAT(fish_text.str(), HasSubstr(" -l activation -x -a 'none relu gelu silu' -d 'act'\n"));
  if (Shell("zsh --version").code == 0) {
    const Outcome parsed = Shell("zsh -n " + zsh);
    EXPECT_EQ(parsed.code, 0) << parsed.out;
  }
  if (Shell("fish --version").code == 0) {
    const Outcome parsed = Shell("fish --no-execute " + fish);
    EXPECT_EQ(parsed.code, 0) << parsed.out;
  }
}

TEST_F(CompletionTest, AnUnknownShellIsRefused) {
  EXPECT_EQ(Kernctl({"completion", "cmd"}).code, kBadArguments);
  EXPECT_EQ(Kernctl({"completion"}).code, kBadArguments);
}

}  // namespace
}  // namespace kernd::cli
