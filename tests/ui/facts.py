"""Pages of the seeded site, and the texts that each of them shows."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.seed.small import HOSTILE_HPARAM, HOSTILE_METRIC, HOSTILE_NAME


@dataclass(frozen=True)
class Facts:
    """A page and what it shows.

    :param path: see :meth:`~testbed.pages_site.PagesSite.address`
    :param texts: each is visible on the page
    """

    name: str
    path: str
    texts: tuple[str, ...]


PAGES = (
    Facts("experiments", "/plugin/dtrain/experiments", (
        "14 experiments", "cifar10-asha", "resnet-asha", "imagenet-resnet50", HOSTILE_NAME, HOSTILE_METRIC,
        "6 completed", "6 paused", "4 killed", "paper", "GPT-2 on support tickets",
    )),
    Facts("cluster", "/plugin/dtrain/cluster", (
        "10 hosts", "a100-01", "replace the fan of GPU 3", "driver update", "reserved for the course on Friday",
        "unreachable", "NVIDIA H100 80GB HBM3", "of 40 GPUs in use", "of 8 CPU slots in use",
    )),
    Facts("queue", "/plugin/dtrain/queue", (
        "bert-distill", "llama-pretrain", "gpt2-finetune", "Held gang, no trial now",
        "24 slots can never be granted", "It is paused by bob",
    )),
    Facts("experiment", "/plugin/dtrain/experiments/{experiment cifar10-asha}", (
        "cifar10-asha", "Baseline of the paper, section 4.2", "vision", "24 stopped", "validation/accuracy",
    )),
    Facts("experiment-trials", "/plugin/dtrain/experiments/{experiment cifar10-asha}?tab=trials", (
        "32 trials", "global_batch_size", "adamw", "stopped by the searcher",
    )),
    Facts("experiment-hyperparameters", "/plugin/dtrain/experiments/{experiment cifar10-asha}?tab=hyperparameters", (
        "32 trials by accuracy", "optimizer", "Importance for accuracy",
        # The most important hyperparameter, which is known a moment after the trials.
        "accuracy over lr",
    )),
    Facts("experiment-rungs", "/plugin/dtrain/experiments/{experiment cifar10-asha}?tab=rungs", (
        "Bracket 0", "Bracket 2", "22 reported, 4 continued, 17 stopped",
    )),
    Facts("experiment-config", "/plugin/dtrain/experiments/{experiment cifar10-asha}?tab=config", (
        "Template vision, version 1", "WANDB_API_KEY: '********'", "max_trials: 32",
    )),
    Facts("trial", "/plugin/dtrain/trials/{trial gpt2-finetune/0}", (
        "16 slots on a100-02 (0-7), a100-04 (0-7)", "gpt2-finetune", "3 attempts", "perplexity", "GPU utilization",
    )),
    Facts("trial-failed", "/plugin/dtrain/trials/{trial imagenet-resnet50/0}", (
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/imagenet/shard-017.tar'", "What to try",
        "data.py:19", "return open(path, 'rb')", "failed in the same way.", "Read the logs of all ranks.",
    )),
    Facts("experiment-failed", "/plugin/dtrain/experiments/{experiment imagenet-resnet50}", (
        "The only trial failed.", "data.py:19", "Trial ",
    )),
    Facts("trial-ranks", "/plugin/dtrain/trials/{trial imagenet-resnet50/0}?tab=ranks", (
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/imagenet/shard-017.tar'",
        "SIGTERM, sent by the supervisor",
    )),
    Facts("cluster-heat", "/plugin/dtrain/cluster?heat=power", (
        "0 W", "400 W", "not measured: no trial measures this slot now",
    )),
    Facts("cluster-use", "/plugin/dtrain/cluster?view=use&by=dag", ("Slot hours", "gpt2_finetune", "CSV")),
    Facts("cluster-day", "/plugin/dtrain/cluster?view=day", ("Day of 10 hosts", "Not available", "a100-01")),
    Facts("cluster-day-host", "/plugin/dtrain/cluster?view=day&host=a100-01", ("Day of a100-01", "All hosts", "Held")),
    Facts("queue-never", "/plugin/dtrain/queue?pool=h100", ("cannot run", "24 slots can never be granted")),
    Facts("experiments-never", "/plugin/dtrain/experiments?state=never_fits", (
        "cannot run", "1 experiment", "llama-pretrain", "24 slots can never be granted",
    )),
    Facts("experiment-never", "/plugin/dtrain/experiments/{experiment llama-pretrain}?tab=trials&state=never_fits", (
        "cannot run", "Cannot run", "24 slots can never be granted", "1 trial",
    )),
    Facts("trial-never", "/plugin/dtrain/trials/{trial llama-pretrain/0}", (
        "cannot run", "Cannot run", "24 slots can never be granted",
    )),
    Facts("runs-never", "/plugin/dtrain/runs?where=never_fits+%3D+true", ("1 trial", "cannot run", "llama-pretrain")),
    Facts("experiment-code", "/plugin/dtrain/experiments/{experiment cifar10-asha}?tab=code", (
        "asha.yaml", "Packages and devices", "def all_digits():",
    )),
    Facts(
        "experiment-changes",
        "/plugin/dtrain/experiments/{experiment cifar10-asha}?tab=code&against={experiment mnist-grid}",
        ("global_batch_size", "asha.yaml", "+def all_digits():"),
    ),
    Facts("trial-trace", "/plugin/dtrain/trials/{trial mnist-grid/0}?tab=profile", (
        "ProfilerStep", "ConvolutionBackward0", "Download for Perfetto or TensorBoard",
    )),
    Facts("trial-code", "/plugin/dtrain/trials/{trial cifar10-asha/0}?tab=code", ("Packages and devices", "train.py")),
    Facts("trial-files", "/plugin/dtrain/trials/{trial mnist-grid/0}?tab=files", ("work/report.html", "Download")),
    Facts("trial-profile", "/plugin/dtrain/trials/{trial gpt2-finetune/0}?tab=profile", ("gpu_util", "a100-04")),
    Facts("trial-nan", "/plugin/dtrain/trials/{trial lr-too-high/0}", ("grad_norm", "Completed")),
    Facts("hostile-experiment", "/plugin/dtrain/experiments/{experiment HOSTILE}?tab=trials", (
        HOSTILE_NAME, HOSTILE_HPARAM, "<i>a</i>", "<u>tag</u>", "ValueError: <script>window.hacked=1</script>",
    )),
    Facts("hostile-trial", "/plugin/dtrain/trials/{trial HOSTILE/2}?tab=training", (
        HOSTILE_METRIC, "ValueError: <script>window.hacked=1</script>",
    )),
    Facts("runs", "/plugin/dtrain/runs?where=tag+%3D+%22paper%22&columns=experiment&columns=params.lr&columns=tag", (
        "32 trials", "cifar10-asha", "params.lr", "paper",
    )),
    Facts("runs-groups", "/plugin/dtrain/runs?where=metrics.accuracy+!%3D+null&by=params.optimizer&columns=best", (
        "best: mean ± std", "adamw", "Group by",
    )),
    Facts(
        "runs-charts",
        "/plugin/dtrain/runs?where=tag+%3D+%22paper%22"
        "&chart=%5B%22scatter%22%2C%22best%22%2C%22params.lr%22%5D&chart=%5B%22curves%22%2C%22metrics.accuracy%22%2C%22%22%5D",
        ("best over params.lr",),
    ),
    Facts("hostile-failure", "/plugin/dtrain/trials/{trial HOSTILE/2}", (
        "ValueError: <script>window.hacked=1</script>", "What to try", "Whole traceback",
    )),
    Facts("compare", "/plugin/dtrain/compare?trial={trial cifar10-asha/0}&trial={trial cifar10-asha/2}", (
        "Compare 2 trials", "Number in its experiment", "global_batch_size", "The same, and not shown",
    )),
    Facts("experiment-timeline", "/plugin/dtrain/experiments/{experiment cifar10-asha}?tab=timeline", (
        "Trials on their slots",
    )),
    Facts("experiment-rank", "/plugin/dtrain/experiments/{experiment cifar10-asha}?tab=hyperparameters&draw=rank", (
        "Rank by accuracy over",
    )),
    Facts("experiment-comments", "/plugin/dtrain/experiments/{experiment cifar10-asha}?tab=comments", (
        "Dropout above 0.3", "never helps", "a cosine schedule", "Agreed. The best trial is the one that we deploy.",
    )),
    Facts("hostile-comments", "/plugin/dtrain/experiments/{experiment HOSTILE}?tab=comments", (
        "<b>eve</b>", "<script>window.hacked=1</script>",
    )),
    Facts("trial-log", "/plugin/dtrain/trials/{trial lr-too-high/0}?tab=log", (
        "loss is nan", "<b>shown</b>", "Download",
    )),
    Facts("trial-log-search", "/plugin/dtrain/trials/{trial lr-too-high/0}?tab=log&grep=shard&level=warning", (
        "15 lines found", "WARNING data: shard 39 took 5 s to load", "Show all lines",
    )),
    Facts("trial-log-ranks", "/plugin/dtrain/trials/{trial gpt2-finetune/0}?tab=log&ranks=0&ranks=1", (
        "Rank 0 on a100-02", "Rank 1 on a100-02", "The other ranks follow the one under the pointer",
    )),
    Facts("trial-media", "/plugin/dtrain/trials/{trial mnist-grid/0}?tab=media", (
        "samples/reconstruction", "validation/confusion", "weights/layer1", "400, the latest", "digit 5",
        "the 8 <b>looks</b> like a 3 & the 1 like a 7",
    )),
    Facts("compare-media", "/plugin/dtrain/compare?trial={trial mnist-grid/0}&trial={trial mnist-grid/1}", (
        "Compare 2 trials", "samples/reconstruction", "400, the latest",
    )),
    Facts("editor", "/plugin/dtrain/experiments/new", ("entrypoint",)),
    Facts("run-tab", "/dags/cifar10_asha/runs/{run cifar10_asha}/plugin/dtrain-run", ("cifar10-asha",)),
    Facts("trial-tab", "/dags/gpt2_finetune/runs/{run gpt2_finetune}/tasks/train/plugin/dtrain-trial", (
        "perplexity", "GPU utilization",
    )),
)  # fmt: skip
