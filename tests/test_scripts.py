"""The corpus of scripts: each runs, computes the same to the bit while watched, and gets the right findings.

A wrong script gets a finding of its category on the line that it marks, and no warning or error of another one; a
right script gets none at all. With its fix made, a wrong script runs, and its mistake is found no more.
"""

import ast
import contextlib
import hashlib
import io
import re
import runpy
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gradgate.checker.fixes import apply, edits_for
from gradgate.checker.recording import Watcher
from gradgate.checker.reports import report_on

# private: the notes on what no step moves, apart from what could not be seen
from gradgate.checker.reports._unmoved import unmoved
from gradgate.checker.rules import Finding, check, rules
from gradgate.events import Gap, Log, OptimizerMade, Stepped
from tests import pages

SCRIPTS = Path(__file__).parent / "scripts"
WRONG = sorted(SCRIPTS.glob("wrong/*/*.py"))
RIGHT = sorted(SCRIPTS.glob("right/*/*.py"))
SHOWN = pages.shown_scripts("tests/scripts/")
GAPS = (0.31, 0.47, 0.63)  # where the log of a right script has a gap
MARKER = re.compile(r"# expect: ([a-z-]+)$")

# What a message counts, as its finding does.
COUNTED = re.compile(
    r"(\d+) of \d+ (?:watched )?(?:steps|backward calls|calls|windows)\b|in (?:at least )?(\d+) steps\b|"
    r"in each of (\d+) |constructed (\d+) times|after (\d+) backward calls"
)

# What the rules do not find, and why. A rule that learns to find one makes its test fail: take it out then.
MISSED = {
    "wrong/scheduler-cadence/superconvergence": "a short run of a long schedule looks the same",
    "wrong/clip-misplaced/other_head": "only a part of the network is clipped too late",
    "wrong/graph-retention/kept_buffers": "a graph that is kept for nothing costs memory only",
    "wrong/graph-retention/levels_by_hand": "truncated back-propagation looks the same",
    "wrong/graph-retention/sensor_chunks": "the graph grows within one window",
    "wrong/ineffective-step/critic_not_clipped": "a write that is lost leaves no trace",
    "wrong/ineffective-step/functional_update_unread": "the gradient is a value of torch.func, in no .grad",
    "wrong/ineffective-step/rebound_mixed": "after the first call, no loss reaches the weight",
    "wrong/ineffective-step/rebound_mixed_class": "after the first call, no loss reaches the weight",
    "wrong/ineffective-step/target_rebound": "a write that is lost leaves no trace",
    "wrong/ineffective-step/trunk_of_the_critic": "another optimizer holds what the loss should train",
    "wrong/inplace-param-update/averaged_validation": "from the writes alone, it looks like a projection",
    "wrong/inplace-param-update/blocks_multiplied": "shared weights may be intended",
    "wrong/inplace-param-update/committee_of_one": "shared weights may be intended",
    "wrong/inplace-param-update/sharpness_probe": "from the writes alone, it looks like a projection",
    "wrong/loss-input/notes_not_shifted": "the data is not compared with the targets",
    "wrong/loss-input/pairs_shifted_again": "the data is not compared with the targets",
    "wrong/scheduler-cadence/also_after_each_epoch": "the second line advances the schedule now and then",
    "wrong/scheduler-cadence/drop_an_epoch_early": "the rate of the first steps is the first rate",
    "wrong/scheduler-cadence/linear_warmup_iters": "a short run of a warm-up in epochs looks the same",
    "wrong/train-eval-mode/denoiser_trainer": "only the source shows that the pass evaluates",
    "wrong/train-eval-mode/functional_dropout": "the mode of a function is in no record",
    "wrong/train-eval-mode/validates_in_training": "only the source shows that the pass evaluates",
    "wrong/zero-gradient/labels_from_the_meter": "pseudo-labels look the same",
    "wrong/zero-gradient/own_predictions": "pseudo-labels look the same",
    "wrong/zero-gradient/ppo_copy_of_the_new": "right if each sample is used once",
    "wrong/zero-gradient/predictions_named_y": "pseudo-labels look the same",
    "wrong/wasted-gradient/zero_rate_group": "a case of its own",
    "wrong/wasted-gradient/zero_lr_group": "a case of its own",
    "wrong/wasted-gradient/layerwise_lr": "a case of its own",
    "wrong/wasted-gradient/keys_then_a_probe": "a case of its own",
    "wrong/frozen-state-drift/module_not_unfrozen": "a case of its own",
    "wrong/param-in-multiple-optimizers/rates_of_the_head": "a case of its own",
    "wrong/stale-optimizer-params/codes_of_the_batch": "a case of its own",
    "wrong/param-not-in-optimizer/new_head_beside_biases": "a case of its own",
    "wrong/param-not-in-optimizer/layers_of_the_pretext": "a case of its own",
    "wrong/param-not-in-optimizer/gradual_unfreezing": "a case of its own",
    "wrong/param-not-in-optimizer/adapters_the_wrong_way_round": "a case of its own",
    "wrong/param-not-in-optimizer/adapters_frozen_with_the_rest": "a case of its own",
    "wrong/double-counting/bayes_kl": "the term is computed anew each time, so its nodes are not the same",
    "wrong/loss-reduction/shards": "gradients that replicas leave are put together by hand, in no graph",
    "wrong/train-eval-mode/teacher_dropout": "mean teachers leave the teacher in training mode on purpose",
    "wrong/param-not-in-optimizer/inputs_beside_the_weights": "data in the optimizer, which moves like a weight",
    "wrong/ineffective-step/reptile_no_copy": "every gradient is zero, and other steps move the weights",
    "wrong/ineffective-step/target_is_online": "frozen after a loss had reached it",
    "wrong/skipped-batch/every_batch": "no step shows what the gradients are for",
    "wrong/skipped-batch/no_step_after_a_spike": "an optimizer may be done before its losses are",
    "wrong/accumulation-scaling/penalty_apart": "a loss of a line of its own may have a weight of its own",
    "wrong/accumulation-scaling/trl_6024": "sums divided by a constant may have a weight",
    "wrong/accumulation-window/counter_never_reset": "most windows hold one micro-batch",
    "wrong/accumulation-window/remainder_as_condition": "most windows hold one micro-batch",
    "wrong/cross-loss-leak/classifier_of_a_probe_loss": "the loss of any head may train the trunk on purpose",
    "wrong/cross-loss-leak/linear_probe": "the loss of any head may train the trunk on purpose",
    "wrong/cross-loss-leak/online_evaluator": "the loss of any head may train the trunk on purpose",
    "wrong/cross-loss-leak/online_probe": "the loss of any head may train the trunk on purpose",
    "wrong/cross-loss-leak/pretrainer_probe": "the loss of any head may train the trunk on purpose",
    "wrong/cross-loss-leak/probes_of_each_layer": "the loss of any head may train the trunk on purpose",
    "wrong/cross-loss-leak/ssl_online_probe": "the loss of any head may train the trunk on purpose",
    "wrong/cross-loss-leak/test_loss_after_the_step": "only its name says that the loss is for testing",
    "wrong/loss-reduction/attention_mask_counted": "the divisor of a sum may be anything",
    "wrong/loss-reduction/chunked_vocabulary": "a mean of means may be meant",
    "wrong/missing-zero-grad/attacked_signal": "no optimizer holds the input, so no step is seen",
    "wrong/missing-zero-grad/lbfgs_closure": "gradients are cleared, before the step and not in its closure",
    "wrong/missing-zero-grad/line_by_hand": "no optimizer holds the weights, so no step is seen",
    "wrong/missing-zero-grad/workers_add_up": "gradients that are added by hand may be meant",
    "wrong/broken-graph/codes_of_one_hot": "the codes are drawn, and a loss tells the encoder where they are",
    "wrong/broken-graph/echo_last_step": "a state that is detached on purpose looks the same",
    "wrong/broken-graph/few_shot_inner_steps": "first-order MAML looks the same",
    "wrong/broken-graph/losses_by_name": "a sum of Python numbers and a tensor has no value to follow",
    "wrong/broken-graph/margin_in_numpy": "values are not followed through numpy",
    "wrong/broken-graph/variable_around_the_loss": "no value leads from the new leaf back to the network",
    "wrong/term-left-out/adversary_by_whole_progress": "a weight that is 0 for now looks the same",
    "wrong/term-left-out/balance_of_experts": "a measure of the outputs that the loss uses looks the same",
    "wrong/term-left-out/horizons_overwritten": "a refinement of one state looks the same",
    "wrong/broken-graph/physics_residual": "a case of its own, which no general mechanism reaches",
    "wrong/loss-reduction/hidden_padding": "a case of its own, which no general mechanism reaches",
    "wrong/term-left-out/a2c_entropy": "a case of its own, which no general mechanism reaches",
    "wrong/term-left-out/entropy_option": "a case of its own, which no general mechanism reaches",
    "wrong/zero-gradient/rounded_rating": "a case of its own, which no general mechanism reaches",
}
UNUSED = {
    "right/gradients_read/scores_of_a_mask": [
        "None of 20 steps of optimizer moved net.gates. Check whether a loss uses it.",
    ],
    "right/generative/free_bits": [
        "None of 10 steps of opt moved expected (2 tensors). Check whether a loss uses it.",
    ],
    "right/several_losses/second_phase_without_prior": [
        "None of 12 steps of opt moved model.center. Check whether a loss uses it.",
        "None of 12 steps of opt moved model.width. Check whether a loss uses it.",
    ],
    "right/unusual/norm_in_some_blocks": [
        "None of 15 steps of opt moved net.0.norm. Check whether a loss uses it.",
    ],
}
OTHER_LINE = {
    "wrong/graph-retention/chars_by_hand": "said of the operation, marked is the carried value",
    "wrong/graph-retention/leaky_units": "said of the operation, marked is the carried value",
    "wrong/ineffective-step/linear_scaling_rule": "said of the schedule, marked is the rate that rounds to 0",
    "wrong/ineffective-step/optimizer_of_the_last_member": "said of the call, marked is the loss of others",
    "wrong/ineffective-step/rebound_if_there_is_one": "said of the backward call, marked is the update",
    "wrong/ineffective-step/rebound_in_a_new_list": "said of the last subtraction, marked is the update",
    "wrong/ineffective-step/schedule_in_its_place": "said of the backward call, marked is the call in its place",
    "wrong/inplace-param-update/soft_target_of_itself": "said of the copy, marked is where both become one",
    "wrong/loss-input/labels_of_two_domains": "said of the losses, marked is the softmax",
    "wrong/loss-input/sequential_sigmoid": "said of the loss, marked is the layer",
    "wrong/nonfinite-gradient/padded_rates": "said of the operation after the power",
    "wrong/nonfinite-gradient/std_single": "said of the operation after the deviation",
    "wrong/scheduler-cadence/denoiser_ceil": "said of the scheduler, marked is its length",
    "wrong/scheduler-cadence/linear_micro": "said of the scheduler, marked is its length",
    "wrong/stale-values/whole_loop_in_autocast": "said of the pass, marked is the block around the loop",
    "wrong/zero-gradient/adapter_half_frozen": "said of the product, marked is the freeze",
    "wrong/zero-gradient/multitask_ramp": "said of the product, marked is the weight that rounds to 0",
    "wrong/zero-gradient/teacher_follows_itself": "said of the loss, marked is where both become one",
    "wrong/frozen-state-drift/distiller_tested_before": "said of another line of the same cause",
    "wrong/wasted-gradient/second_critic_left_out": "said of another line of the same cause",
    "wrong/stale-optimizer-params/returned_by_a_loader": "said of another line of the same cause",
    "wrong/param-not-in-optimizer/second_discriminator": "said of another line of the same cause",
    "wrong/param-not-in-optimizer/scaled_positions": "said of another line of the same cause",
    "wrong/param-not-in-optimizer/named_groups": "said of another line of the same cause",
    "wrong/param-not-in-optimizer/group_not_appended": "said of another line of the same cause",
    "wrong/accumulation-scaling/spectra_autoencoder": "said of the division, marked is the call with the number",
    "wrong/frozen-state-drift/stale_after_freeze": "said of the freeze, marked is the loop that clears the others",
    "wrong/graph-retention/smoothed_loss": (
        "said of the meter that adds, marked is the call that hands it the loss"
    ),
    "wrong/param-in-multiple-optimizers/tied_translator": "said of the list, marked is its use",
    "wrong/unreached-parameter/task_weights": "that a key is missing shows only where its head is left out",
    "wrong/unreached-parameter/policy_log_std": "said of the layer before, marked is the constant in its place",
    "wrong/wasted-gradient/superres_perceptual": "said of the call, marked is where the network is made",
    "wrong/zero-gradient/dense_detector": "said of the ReLU, marked is the bias that closes it",
    "wrong/accumulation-window/stepper_with_flush": "said of the condition, marked is the end of the epoch",
    "wrong/missing-zero-grad/lent_only_once": "said of the step, marked is the condition of the copy",
    "wrong/broken-graph/balance_by_counts": "said of the choice, marked is the count of the choices",
    "wrong/broken-graph/compressed_memory": "said of the detached memory, marked is the sum",
    "wrong/broken-graph/feedback_detached": "said of the detached value, marked is the sum",
    "wrong/broken-graph/reentrant_adapters": "said of the layer inside, marked is the checkpoint",
    "wrong/broken-graph/soft_labels_of_the_teacher": "said of the teacher, marked is the sum",
    "wrong/broken-graph/teacher_with_itself": "said of the teacher, marked is the distance",
    "wrong/term-left-out/loss_overwritten": "said of the sum, marked is the line that overwrites it",
    "wrong/term-left-out/only_the_last_micro_batch": "said of the loss, marked is the backward call",
    "wrong/term-left-out/smoothness_of_a_pair": "said of the loss inside, marked is the sum",
}

# Where the advice is no edit: there is more than one way, or the line of the finding does not show it.
ADVICE_ONLY = {
    "skipped-batch": ("every_batch no_step_after_a_spike"),
    "accumulation-scaling": (
        "accumulator_and_by_hand balance_term name_ngram penalty_apart penalty_not_divided "
        "spectra_autoencoder trl_6024 vit_trainer"
    ),
    "accumulation-window": (
        "callback_trainer char_rnn contrastive_pairs conv_leftover counter_never_reset empty_documents "
        "house_prices housing_mlp old_update_kept remainder_as_condition segmentation_trainer "
        "sentiment_gru step_after_the_branch stepper_with_flush trainer_counter"
    ),
    "amp-scaler-misuse": (
        "digits_mlp forgotten_scaler old_step_left_in scaler_in_step two_ways_to_step vae_mixed"
    ),
    "attached-target": (
        "a2c_ring assistant_of_two audio_hints averaged_in_place chain_actor_critic codes_not_detached "
        "distiller feature_teacher iou_as_label mean_teacher_stepped momentum_encoder nets_of_one_agent "
        "peers prototypes_beside_features q_learning quality_head rollout_of_values td_error "
        "teacher_in_the_optimizer two_crops two_students value_computed_again teacher_trained_before"
    ),
    "broken-graph": (
        "age_from_bins averaged_losses balance_by_counts balance_returned captioner_detach "
        "codes_of_one_hot codes_straight_through echo_last_step ensemble_tensor feature_loss "
        "features_of_the_detached features_rebound few_shot_inner_steps frozen_decoder graph_net "
        "graph_net_no_grad kl_item losses_by_name maml_copied_learner margin_in_numpy physics_residual "
        "reentrant_adapters reentrant_encoder rehearsal_off ridge_of_state_dict sac_detached "
        "soft_labels_of_the_teacher soft_prompt_leaf spectrum_numpy stitched_middle style_weight "
        "teacher_with_itself tokens_argmax torch_normal unit_codes values_stored_detached "
        "variable_around_the_loss"
    ),
    "clip-misplaced": (
        "adding_rnn dqn_cliff other_head poly_regression resnet_filter siamese_chain speech_accum "
        "trainable_filter"
    ),
    "cross-loss-leak": (
        "both_step_at_the_end classifier_of_a_probe_loss critic_cleared_too_early critic_steps_last "
        "linear_probe losses_before_steps online_evaluator online_probe pairs_of_loss_and_optimizer "
        "perturbed_signals policy_then_critic pretrainer_probe probes_of_each_layer robust_classifier "
        "ssl_online_probe test_loss_after_the_step"
    ),
    "double-counting": (
        "bayes_kl center_loss detector_losses expert_balance horizons ridge_penalty sum_of_dict"
    ),
    "frozen-state-drift": (
        "distiller_tested_before finetuned_later module_not_unfrozen prompts_of_earlier_tasks "
        "teacher_in_training_mode two_stages"
    ),
    "graph-retention": (
        "chars_by_hand functional_parameters kept_buffers leaky_units levels_by_hand parameters_in_a_list "
        "sensor_chunks smoothed_in_place"
    ),
    "ineffective-step": (
        "actor_twice bfloat16_adamw bfloat16_factors bfloat16_finetune bfloat16_second_phase bfloat16_sgd "
        "counter_begins_anew critic_not_clipped encoder_not_stepped flag_never_set forum_84911 "
        "frozen_encoder functional_update_unread linear_scaling_rule momentum_by_hand one_of_a_dict "
        "optimizer_of_the_last_member optimizers_of_one_network preferences_of_the_reference "
        "rebound_behind_a_guard rebound_data_sub rebound_if_there_is_one rebound_in_a_new_list "
        "rebound_list_grad rebound_mixed rebound_mixed_class rebound_state_dict rebound_weights "
        "reptile_no_copy returned_by_a_guarded_update schedule_in_its_place scratch_mlp "
        "softmax_from_scratch step_not_called target_is_online target_rebound teachers_parameters "
        "trunk_of_the_critic warmup warmup_floor"
    ),
    "loss-input": (
        "labels_of_two_domains loss_of_softmax notes_not_shifted pairs_shifted_again policy_logits "
        "scores_to_ctc sequential_sigmoid softmax_before_nll softmax_in_distillation softmax_over_words "
        "votes_of_examples wine_layer"
    ),
    "loss-reduction": (
        "attention_mask_counted chunked_vocabulary hidden_padding kl_div_mean masked_words ner_padding "
        "padded_mean padded_translation padding_mean pose_multitask shards summed_divergence"
    ),
    "microbatch-normalization": (
        "char_lm chunked_step completion_tokens contrastive_accum gpt_padding last_window ner_tagger "
        "open_instruct_1498 segmentation_void split_batch split_batch_again token_counts "
        "transformers_34191 vae_frames"
    ),
    "missing-zero-grad": (
        "attacked_signal closure_until_nan discriminator_never_cleared guarded_by_the_norm lbfgs_closure "
        "line_by_hand master_weights second_step_of_the_generator shared_by_a_worker "
        "shared_by_several_workers shared_in_a_class sine_lbfgs uploaded_gradients value_never_cleared "
        "workers_add_up"
    ),
    "nonfinite-gradient": ("log_of_softmax masked_actions padded_rates set_pooling std_single where_log"),
    "optimizer-state-reset": (
        "batch_function decay_by_reload decayed_rate epoch_function momentum_call rollout_update "
        "style_lr_decay train_function"
    ),
    "param-in-multiple-optimizers": (
        "one_discriminator_twice a2c_shared_trunk actor_critic_trunk backbone_and_head embedding_sparse "
        "encoder_and_all rates_of_the_head shared_trunk"
    ),
    "param-not-in-optimizer": (
        "domain_head_left_out adapters_frozen_with_the_rest adapters_in_blocks "
        "adapters_the_wrong_way_round angular_margin auxiliary_of_a_class center_loss clip_pairs "
        "conv_built_in_forward curve_data_in_the_optimizer forgotten_bias gradual_unfreezing "
        "group_not_appended head_built_in_a_function hint_layer_of_each_batch inputs_beside_the_weights "
        "layers_of_an_inner_module layers_of_the_pretext named_groups new_head_beside_biases new_tasks "
        "norm_built_in_forward output_built_in_forward projector_of_each_round sac_alpha scaled_positions "
        "second_discriminator seq2seq_decoder trainer_subclass unfrozen_by_a_helper unfrozen_by_schedule "
        "weights_in_a_dict"
    ),
    "scheduler-cadence": (
        "also_after_each_epoch cosine_before_groups cosine_micro decay_from_a_helper denoiser_ceil "
        "drop_an_epoch_early exponential_unused gru_steplr linear_micro linear_warmup_iters "
        "onecycle_micro onecycle_wine recsys_trainer superconvergence trainer_keeps_scheduler "
        "waits_for_a_flag warmup_in_steps"
    ),
    "stale-optimizer-params": (
        "best_model clamped_to_a_constant codes_of_the_batch folds folds_again growing_vocab new_head "
        "parameter_projected pretrained_vectors probe_of_the_old_head restarted_weights "
        "returned_by_a_loader rollback_callback trainer_copy unit_rows"
    ),
    "train-eval-mode": (
        "baseline_first checked_before clients_copied_in_eval denoiser_trainer eval_stays "
        "functional_dropout helper_before_training midepoch_eval mode_helpers once_before_the_loop "
        "sample_text sanity_check tabular_early_stop teacher_dropout validates_in_training"
    ),
    "unreached-parameter": (
        "asked_for_but_not_run aux_head aux_output_ignored conv_twice dropped_norm encoder_skipped "
        "policy_log_std positions queries_of_initial_weights rna_classifier rollout_policy "
        "second_layer_norm second_target_printed depth_head_only_logged target_network_synced "
        "task_weights tcn_forecast tied_output unread_context"
    ),
    "wasted-gradient": (
        "critic_slopes dqn_corridor dqn_target feature_extractor feature_extractor_again "
        "features_in_a_helper gan_generator keys_then_a_probe layerwise_lr second_critic_left_out "
        "superres_perceptual target_network target_within_a_learner taught_by_the_trained teacher_logits "
        "zero_lr_group zero_rate_group"
    ),
    "zero-grad-misplaced": (
        "closure_fit dcgan_rings grad_monitor lgm_accelerate multitask norm_of_the_rest saliency_log "
        "segmentation_micro"
    ),
}
NEVER_AN_EDIT = {
    "inplace-param-update",
    "stale-values",
    "term-left-out",
    "unintended-broadcast",
    "zero-gradient",
}

# What is not to move: the fix keeps it as it is.
CANCELS = {"D.2.bias", "gan.disc.4.bias"}  # in the difference of a critic's two means
STILL = {"frozen-state-drift", "wasted-gradient"}


@dataclass
class Outcome:
    script: Path
    printed: str
    computed: str
    exit_code: object
    findings: list[Finding]
    log: Log | None = None


def name(path: Path) -> str:
    return path.relative_to(SCRIPTS).with_suffix("").as_posix()


def at_a_mark(finding: Finding, script: Path) -> bool:
    """Return whether a finding is at a line marked with its category, or at a line of the same statement."""
    text = script.read_text("utf-8")
    marks = {n: found[1] for n, line in enumerate(text.splitlines(), 1) if (found := MARKER.search(line))}
    statements = [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt) and not hasattr(node, "body")
    ]
    return finding.file == str(script) and any(
        category == finding.category
        and (line == finding.line or any({line, finding.line} <= set(lines) for lines in statements))
        for line, category in marks.items()
    )


def run(script: Path, *, watch: bool) -> Outcome:
    """Run a script as python does, in a folder of its own; return what it did and what is found."""
    watcher = Watcher(str(script), strict=True)
    exit_code: object = None
    variables: dict[str, Any] = {}
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(sys, "argv", ["train.py"])
        patch.chdir(folder)
        torch.manual_seed(0)
        if watch:
            watcher.start()
        try:
            with contextlib.redirect_stdout(printed), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a wrong script may well be warned of by torch
                variables = runpy.run_path(str(script), run_name="__main__")
        except SystemExit as end:
            exit_code = end.code
        finally:
            watcher.stop()
            state = torch.get_rng_state()
            torch.set_default_dtype(torch.float32)
            torch.set_grad_enabled(True)
            if "torch._dynamo" in sys.modules:
                torch._dynamo.reset()  # where something is compiled, less is looked at: one script's affair
    digest = hashlib.sha256(state.numpy().tobytes())
    for tensor in tensors(variables):
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    log = watcher.log() if watch else None
    found = check(log, strict=True) if log is not None else []
    return Outcome(script, printed.getvalue(), digest.hexdigest(), exit_code, found, log)


def with_a_gap(log: Log, part: float) -> Log:
    """Return a log as it is of a long run, of which the middle is not kept."""
    first, last = int(len(log.events) * part), int(len(log.events) * (part + 0.17))
    return replace(log, events=(*log.events[:first], Gap((), last - first), *log.events[last:]))


def tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Yield the tensors of a script's variables, in a fixed order: those of modules and optimizers too."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (torch.nn.Module, torch.optim.Optimizer)):
        yield from tensors(value.state_dict(), depth)
    elif isinstance(value, dict) and depth < 6:
        for key in sorted(value, key=str):
            if not str(key).startswith("__"):
                yield from tensors(value[key], depth + 1)
    elif isinstance(value, (list, tuple)) and depth < 6:
        for item in value:
            yield from tensors(item, depth + 1)
    elif depth == 1 and type(value).__module__ == "__main__":
        yield from tensors(vars(value) if hasattr(value, "__dict__") else None, depth + 1)


@pytest.fixture(scope="module")
def watched(request: pytest.FixtureRequest) -> Outcome:
    """A watched run, which the tests of its script share: pytest runs them one after the other."""
    return run(request.param, watch=True)


def of_each(scripts: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("watched", scripts, indirect=True, ids=name, scope="module")


@of_each([*WRONG, *RIGHT])
def test_a_script_computes_the_same_watched_or_not_and_gets_its_findings(watched: Outcome) -> None:
    script = watched.script
    plain = run(script, watch=False)
    assert not plain.exit_code
    assert watched.printed == plain.printed
    assert watched.computed == plain.computed
    if script in RIGHT:
        assert watched.log is not None
        part = GAPS[RIGHT.index(script) % len(GAPS)]
        for findings in (watched.findings, check(with_a_gap(watched.log, part), strict=True)):
            assert [finding for finding in findings if finding.severity != "info"] == []
        assert list(unmoved(watched.log)) == UNUSED.get(name(script), [])
        return
    for finding in watched.findings:
        assert {
            int(number) for groups in COUNTED.findall(finding.message) for number in groups if number
        } <= {finding.count}
    category = script.parent.name
    of_category = [finding for finding in watched.findings if finding.category == category]
    at_the_line = [finding for finding in of_category if at_a_mark(finding, script)]
    others = [finding for finding in watched.findings if finding.category != category]
    assert [finding for finding in others if finding.severity != "info"] == []  # one cause, one finding
    assert bool(of_category) == (name(script) not in MISSED)
    assert bool(at_the_line) == (name(script) not in MISSED and name(script) not in OTHER_LINE)


TRUNCATED = ["leaky_units", "moving_center"]


def parts(log: Log | None) -> tuple[set[str], set[str]]:
    """Return the parameters that moved, and the trainable ones that stepping optimizers left as they were."""
    assert log is not None
    stepping = {event.optimizer for event in log.events if isinstance(event, Stepped)}
    made = [event for event in log.events if isinstance(event, OptimizerMade) and event.optimizer in stepping]
    held = {number for event in made for group in event.groups for number in group.parameters}
    moved = {each.name for each in log.parameters.values() if not each.still}
    left = {log.parameters[number].name for number in held if log.parameters[number].trainable}
    return moved, left - moved


@of_each(WRONG)
def test_a_script_with_its_fix_made_shows_no_mistake_and_trains(watched: Outcome, tmp_path: Path) -> None:
    script, category = watched.script, watched.script.parent.name
    edits = [edit for one in watched.findings if one.category == category for edit in edits_for(one)]
    advice_only = category in NEVER_AN_EDIT or script.stem in ADVICE_ONLY.get(category, "").split()
    assert bool(edits) == (not advice_only)
    if not edits:
        return
    copy = tmp_path / script.name
    copy.write_text("\n".join(apply(script.read_text("utf-8").splitlines(), edits)) + "\n", "utf-8")
    fixed = run(copy, watch=True)
    assert not fixed.exit_code
    if category not in STILL:
        (before, idle), (after, idle_after) = parts(watched.log), parts(fixed.log)
        assert before - after <= CANCELS
        assert idle_after - idle <= CANCELS
    # These cost time and memory, and compute the same. A state that passed gradients back no longer does.
    if category in ("wasted-gradient", "graph-retention") and script.stem not in TRUNCATED:
        assert (fixed.printed, fixed.computed) == (watched.printed, watched.computed)
    # The note that retain_graph is no longer needed follows the edit of a state.
    of_category = category if script.stem not in TRUNCATED else ""
    left = [one.code for one in fixed.findings if one.severity != "info" or one.category == of_category]
    assert left == []  # no edit brings up the next mistake


@of_each(list(SHOWN))
def test_the_page_of_a_rule_shows_what_is_printed(
    watched: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert watched.log is not None
    monkeypatch.chdir(tmp_path)
    printed = pages.as_train_py(report_on([watched.log]), watched.script, tmp_path)
    assert SHOWN[watched.script] in printed, "make the pages anew: python tools/rule_pages.py"


def test_what_a_script_computes_is_compared(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nw = torch.zeros(3)\n")
    first = run(script, watch=False)
    script.write_text("import torch\nw = torch.full((3,), 1e-45)\n")
    assert run(script, watch=False).computed != first.computed


IN_A_CONTAINER = """\
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    out = model(torch.randn(16, 4))
    losses = {{"fit": out.square().mean()}}
    losses["size"] = out.abs().mean()
    loss = {total}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "total",
    [
        "sum(losses.values())",
        'sum([losses["fit"], losses["size"].detach()])',
        'sum({"fit": losses["fit"], "size": losses["size"].detach()}.values())',
        'sum({**losses, "size": losses["size"].detach()}.values())',
        'torch.stack((-losses["fit"], -losses["size"].detach())).sum()',
    ],
    ids=["right", "list", "dict", "unpacked dict", "negated"],
)
def test_a_constant_among_the_losses_of_a_container_is_found(tmp_path: Path, total: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(IN_A_CONTAINER.format(total=total), "utf-8")
    found = [(each.category, each.line) for each in run(script, watch=True).findings]
    assert found == ([("broken-graph", 9)] if "detach" in total else [])


@pytest.mark.parametrize("script", WRONG, ids=name)
def test_a_wrong_script_marks_the_line_to_change(script: Path) -> None:
    lines = script.read_text("utf-8").splitlines()
    found = {match[1] for line in lines if (match := MARKER.search(line))}
    assert found == {script.parent.name}


@pytest.mark.parametrize("script", RIGHT, ids=name)
def test_a_right_script_marks_nothing(script: Path) -> None:
    assert "# expect" not in script.read_text("utf-8")


def test_every_category_has_scripts_and_every_script_a_rule() -> None:
    categories = {rule.name for rule in rules()}
    # Several processes take seconds to start: tests/ranks has those.
    assert {script.parent.name for script in WRONG} == categories - {"ddp-sync"}
    assert {script.parent.name for script in SHOWN} == categories - {"ddp-sync"}


def test_the_page_of_the_checker_tells_how_many_fixes_each_rule_offers() -> None:
    page = (Path(__file__).parents[1] / "docs" / "checking.md").read_text("utf-8")
    assert fix_rates() in page


def fix_rates() -> str:
    """Return the rows of docs/checking.md: of each rule's wrong scripts, those found, edited, and put right."""
    rows = []
    for rule in rules():
        scripts = [script for script in WRONG if script.parent.name == rule.name]
        found = [script for script in scripts if name(script) not in MISSED]
        advice_only = ADVICE_ONLY.get(rule.name, "").split()
        edited = [
            script for script in scripts if rule.name not in NEVER_AN_EDIT and script.stem not in advice_only
        ]
        if scripts:
            offered = right = len(edited)  # each edit is tried above
            rows.append(f"| {rule.code} {rule.name} | {len(scripts)} | {len(found)} | {offered} | {right} |")
    return "\n".join(rows) + "\n"
