#include "harness/codes.hpp"
#include "suites/causes/clues.hpp"
#include "suites/codes.hpp"

namespace suites::cause_table {

using namespace codes;
using harness::codes::kException;

namespace {

// The model by the reference's functions parts from the independent model, by this run's own it does not.
CauseRule of_the_reference(std::string_view id, std::string_view code, std::string_view said,
                           std::vector<std::pair<std::string_view, std::string_view>> evidence, int weight) {
  return {.id = id,
          .what = said,
          .weight = weight,
          .clue = {.codes = {code}, .cases = "parity/whole_reference*", .evidence = std::move(evidence)},
          .clean = {"parity/whole_step*"},
          .explains = together({of_wrong_values(), of_wrong_gradients(), of_decoding()})};
}

}  // namespace

Rules operations() {
  return {
      of_the_reference("reference-as-if", kOutputBudget,
                       "The reference, which backends are compared with, is wrong itself: {stage} is what it would be "
                       "if {as_if}; by this run's own backends the model is right",
                       {{"stage", "*"}, {"as_if", "*"}}, 92),
      of_the_reference("reference", kOutputBudget,
                       "The reference, which backends are compared with, is wrong itself in {stage} ({where}); by this "
                       "run's own backends the model is right",
                       {{"stage", "*"}, {"where", "*"}}, 91),
      of_the_reference("reference-chooses-as-if", kSelectionDiffers,
                       "The reference, which backends are compared with, chooses blocks as if {as_if}; this run's own "
                       "backends choose rightly",
                       {{"as_if", "*"}}, 91),
      of_the_reference("reference-chooses", kSelectionDiffers,
                       "The reference, which backends are compared with, chooses blocks that the scores do not "
                       "justify; this run's own backends choose rightly",
                       {}, 90),
      of_the_reference("reference-gradient", kGradientBudget,
                       "The reference, which backends are compared with, gives a wrong gradient of {parameter} "
                       "({where}); its values are right, and so are this run's own backends",
                       {{"parameter", "*"}, {"where", "*"}}, 91),
      // What is read of another sequence is as much "later" as any: this comes before leaks of the future.
      {.id = "sequences-mixed",
       .what = "{op} takes one sequence of a batch for another: {output} is wrong {where}",
       .weight = 87,
       .clue =
           {.codes = {kOutputBudget},
            .cases = "parity/*",
            .evidence = {{"op", "*"}, {"output", "*"}, {"where", "in sequence [1-9]*"}, {"where", "!*in row * alone*"}},
            .values = kFinite},
       .explains = of_wrong_values()},
      {.id = "compressed-blocks-counted",
       .what = "{stage} has another number of compressed blocks than its tokens make ({model})",
       .weight = 87,
       .clue = {.codes = {kOutputContract},
                .cases = "parity/whole_step*",
                .evidence = {{"stage", "*cmp.k"}, {"model", "*"}, {"shape", "*"}}},
       .explains = of_wrong_values()},
      {.id = "future-leak",
       .what = "{stage} reads tokens after its own: row {row} changes when only later tokens do",
       .weight = 86,
       .clue = {.codes = {kFutureLeak}, .evidence = {{"stage", "*"}, {"row", "*"}}},
       .explains = of_wrong_values()},
      // The two gather the same rows, into a buffer that is used again or into fresh tensors.
      {.id = "reused-workspace",
       .what =
           "attend_selected is wrong by way of the workspace that it uses again (packed), and right in fresh tensors "
           "(packed_safe): the workspace is shared or overwritten before it is read",
       .weight = 86,
       .clue = {.codes = {kFutureLeak, kOutputBudget, kException}, .cases = "parity/*\\[backend=sdpa_packed,*"},
       .clean = {"parity/op\\[backend=sdpa,*op=attend_selected*",
                 "parity/causality\\[backend=sdpa,*op=attend_selected*"},
       .explains = of_wrong_values()},
      {.id = "future-leak-of-an-op",
       .what = "{op} reads tokens after its own",
       .weight = 85,
       .clue = {.codes = {kFutureLeak}, .evidence = {{"op", "*"}}},
       .explains = of_wrong_values()},
      {.id = "documents-remembered",
       .what =
           "{op} is wrong for a packed batch behind another one of as many documents and tokens ({before}), for which "
           "it "
           "is right: it remembers that one by its size, without the values of cu_seqlens, or takes these ends wrongly",
       .weight = 85,
       .clue = {.codes = {kPackedDiffers}, .cases = "parity/packed*", .evidence = {{"op", "*"}, {"before", "*"}}},
       .explains = of_wrong_values()},
      {.id = "documents-mixed",
       .what =
           "{op} lets the documents of a packed batch see each other, or takes their ends wrongly; one document alone "
           "is right",
       .weight = 84,
       .clue = {.codes = {kPackedDiffers}, .cases = "parity/packed*", .evidence = {{"op", "*"}}, .values = kFinite},
       .clean = {"parity/op*"},
       .excluded_by = {{.codes = {kOutputBudget}, .cases = "parity/attention*"},
                       {.codes = {kPackedDiffers}, .evidence = {{"before", "*"}}}},
       .explains = of_wrong_values()},
      {.id = "choice-of-decoding-as-if",
       .what = "Decoding chooses blocks as if {as_if}; the pass at once chooses rightly",
       .weight = 84,
       .clue = {.codes = {kSelectionDiffers}, .cases = "parity/whole_decoding*", .evidence = {{"as_if", "*"}}},
       .clean = {"parity/op\\[*", "parity/whole_step*"},
       .explains = of_decoding()},
      {.id = "choice-of-blocks-as-if",
       .what = "select chooses blocks as if {as_if}",
       .weight = 84,
       .clue = {.codes = {kSelectionDiffers}, .cases = "parity/*", .evidence = {{"as_if", "*"}}},
       .explains = of_wrong_values()},
      {.id = "choice-of-decoding",
       .what = "Decoding chooses blocks that the scores do not justify; the pass at once chooses rightly",
       .weight = 84,
       .clue = {.codes = {kSelectionDiffers}, .cases = "parity/whole_decoding*"},
       .clean = {"parity/op\\[*", "parity/whole_step*"},
       .explains = {{.codes = {kWaysDiffer, kDecodeChoice, kModelIdentity}}}},
      {.id = "choice-of-blocks",
       .what = "select chooses blocks that the scores do not justify",
       .weight = 83,
       .clue = {.codes = {kSelectionDiffers}, .cases = "parity/*"},
       .explains = of_wrong_values()},
      {.id = "op-values",
       .what = "{op} computes wrong values ({where})",
       .weight = 82,
       .clue = {.codes = {kOutputBudget},
                .cases = "parity/op*",
                .evidence = {{"op", "!attend"}, {"where", "*"}},
                .values = kFinite},
       .explains = of_wrong_values()},
      {.id = "attend-in-documents",
       .what =
           "{output} is wrong in packed batches alone ({op}, {where}): documents see each other there, or their ends "
           "are taken wrongly; without documents it is right",
       .weight = 83,
       .clue = {.codes = {kOutputBudget},
                .cases = "parity/attention_packed",
                .evidence = {{"op", "attend*documents=*"}, {"output", "*"}, {"where", "*"}},
                .values = kFinite},
       .clean = {"parity/attention\\[*", "parity/whole_step\\[S=2w+lsel+3*"},
       .explains = together({of_wrong_values(), {{.codes = {kDocuments, kToldOtherwise}}}})},
      {.id = "attend-values",
       .what = "{op} computes wrong values in {output} ({where})",
       .weight = 81,
       .clue = {.codes = {kOutputBudget},
                .cases = "parity/*",
                .evidence = {{"op", "attend*"}, {"output", "*"}, {"where", "*"}},
                .values = kFinite},
       .explains = of_wrong_values()},
      {.id = "detached-keys",
       .what = "The compressed branch's keys are cut from the graph: {parameters} get no gradient",
       .weight = 77,
       .clue = {.codes = {kCompressedKeysDetached}, .evidence = {{"parameters", "*"}}},
       .explains = of_wrong_gradients()},
      {.id = "op-cut-from-graph",
       .what = "No gradient reaches {input} of {op}, although its output depends on it",
       .weight = 76,
       .clue = {.codes = {kGraphBreak}, .evidence = {{"op", "*"}, {"input", "*"}}},
       .explains = of_wrong_gradients()},
      {.id = "op-gradient",
       .what = "The backward pass of {op} gives a wrong gradient of {gradient} ({where}); its forward pass is right",
       .weight = 74,
       .clue = {.codes = {kGradientBudget},
                .cases = "parity/op*",
                .evidence = {{"op", "!attend"}, {"gradient", "*"}, {"where", "*"}},
                .values = kFinite},
       .explains = of_wrong_gradients()},
      {.id = "attend-gradient",
       .what = "The backward pass of {op} gives a wrong gradient of {gradient} ({where}); its forward pass is right",
       .weight = 73,
       .clue = {.codes = {kGradientBudget},
                .cases = "parity/*",
                .evidence = {{"op", "*"}, {"gradient", "*"}, {"where", "*"}},
                .values = kFinite},
       .explains = of_wrong_gradients()},
      {.id = "op-derivative",
       .what = "The backward pass of {op} does not match its forward pass: the derivative by {input} is another",
       .weight = 72,
       .clue = {.codes = {kGradcheck}, .evidence = {{"op", "*"}, {"input", "*"}}},
       .explains = of_wrong_gradients()},
  };
}

}  // namespace suites::cause_table
