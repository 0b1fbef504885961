"""action.yml and deploy/gitlab-ci.yml: every step as written, and what later steps see."""
import os
import re
import shutil
import subprocess
import tarfile

import pytest

import rig

yaml = pytest.importorskip("yaml", reason="not installed: python3-yaml")

# As both services run what a step says.
BASH = ["bash", "--noprofile", "--norc", "-eo", "pipefail"]
LATER = """
ib_write_bw -F -n 200 -p {port} & sleep 1
ib_write_bw -F -n 200 -p {port} 127.0.0.1
wait $!
ls -L /dev/infiniband/uverbs0
"""


def load(path):
    with open(os.path.join(rig.ROOT, path)) as f:
        return yaml.safe_load(f)


def examples(path):
    """The blocks of YAML in a document."""
    with open(os.path.join(rig.ROOT, path)) as f:
        return [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", f.read(), re.M | re.S)]


def bash(script, env, cwd):
    p = subprocess.run([*BASH, "-c", script], cwd=cwd, env=env, text=True, stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    assert p.returncode == 0, p.stdout
    return p.stdout


def clean():
    return {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": os.environ.get("HOME", "/"),
            "LC_ALL": "C.UTF-8"}


@pytest.fixture(scope="module")
def tarball(tmp_path_factory):
    """One like that of "make tarball", of what is built here."""
    top = tmp_path_factory.mktemp("tarball")
    subprocess.run(["cmake", "--install", rig.BUILD, "--prefix", top / "softhca-0-linux"], check=True,
                   stdout=subprocess.DEVNULL)
    with tarfile.open(top / "softhca.tar.gz", "w:gz", compresslevel=1) as t:
        t.add(top / "softhca-0-linux", "softhca-0-linux")
    shutil.rmtree(top / "softhca-0-linux")
    return str(top / "softhca.tar.gz")


class Job:
    """What GitHub's runner does, as far as action.yml needs it."""

    def __init__(self, tmp, inputs):
        self.action = load("action.yml")
        assert self.action["runs"]["using"] == "composite"
        assert inputs.keys() <= self.action["inputs"].keys()
        self.inputs = {k: v["default"] for k, v in self.action["inputs"].items()} | inputs
        self.cwd = tmp / "workspace"
        self.files = {n: tmp / n for n in ("GITHUB_ENV", "GITHUB_PATH")}
        self.temp = tmp / "temp"
        for d in self.cwd, self.temp:
            d.mkdir()
        for f in self.files.values():
            f.write_text("")

    def value(self, text):
        return re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda m: self.inputs[m[1]], text)

    def wanted(self, step):
        if "if" not in step:
            return True
        m = re.fullmatch(r"inputs\.(\w+) (==|!=) '(.*)'", step["if"])
        return (self.inputs[m[1]] == m[3]) == (m[2] == "==")

    def env(self):
        """Of the next step."""
        env = clean()
        for line in self.files["GITHUB_ENV"].read_text().splitlines():
            name, _, value = line.partition("=")
            assert re.fullmatch(r"\w+", name), line
            env[name] = value
        env["PATH"] = ":".join([*self.files["GITHUB_PATH"].read_text().split("\n")[-2::-1], env["PATH"]])
        return env

    def run(self, script, extra=()):
        assert "${{" not in script
        more = {n: str(f) for n, f in self.files.items()}
        return bash(script, {**self.env(), **more, "RUNNER_TEMP": str(self.temp), "GITHUB_ACTION_PATH": rig.ROOT,
                             **dict(extra)}, self.cwd)

    def all(self):
        """The names of the steps that ran."""
        names = []
        for step in self.action["runs"]["steps"]:
            assert step["shell"] == "bash"
            if self.wanted(step):
                names.append(step["name"])
                self.run(step["run"], {k: self.value(v) for k, v in step.get("env", {}).items()})
        return names


needs = pytest.mark.skipif(bool(rig.need("ib_write_bw")), reason="not installed: perftest")


@needs
def test_action_builds(tmp_path):
    """As in docs/CI.md: later steps see the device, and so do all programs in them."""
    steps = examples("docs/CI.md")[0]["steps"]
    [use] = [s for s in steps if s.get("uses") == "./softhca"]
    job = Job(tmp_path, use["with"])
    assert job.all() == ["Build", "Put it in PATH", "Export the environment"]
    assert job.env()["SOFTHCA_EXPLAIN"] == "1" and "SOFTHCA_SYSFS" not in job.env()
    said = job.run(LATER.format(port=rig.free_port()))
    assert "softhca0" in said and "MB/sec" in said and "uverbs0" in said
    assert "softhca0" in job.run("ibv_devices")


@needs
def test_action_unpacks(tmp_path, tarball):
    job = Job(tmp_path, {"tarball": tarball, "options": "--wire --loss=0.5"})
    assert job.all() == ["Unpack", "Put it in PATH", "Export the environment"]
    env = job.env()
    assert (env["SOFTHCA_WIRE"], env["SOFTHCA_LOSS"]) == ("1", "0.5")
    assert "uverbs0" in job.run(LATER.format(port=rig.free_port()))


def test_action_without_export(tmp_path, tarball):
    job = Job(tmp_path, {"tarball": tarball, "export": "false"})
    assert job.all() == ["Unpack", "Put it in PATH"]
    assert "LD_PRELOAD" not in job.env()
    assert "softhca0" in job.run("softhca run -- ls /sys/class/infiniband")


@needs
def test_gitlab(tmp_path, tarball):
    """The hidden job and the example of docs/CI.md, in one shell, as a runner does."""
    job = load("deploy/gitlab-ci.yml")[".softhca"]
    example = examples("docs/CI.md")[1]
    assert example["include"] == "deploy/gitlab-ci.yml" and example["rdma"]["extends"] == ".softhca"
    shutil.copy(tarball, tmp_path / job["variables"]["SOFTHCA_TARBALL"])
    port = rig.free_port()
    lines = [line.replace("ib_write_bw", f"ib_write_bw -F -n 200 -p {port}") for line in example["rdma"]["script"]]
    said = bash("\n".join([*job["before_script"], *lines, "wait", "ls -L /dev/infiniband"]),
                {**clean(), **job["variables"], "CI_BUILDS_DIR": str(tmp_path)}, tmp_path)
    assert "softhca0" in said and "MB/sec" in said and "uverbs0" in said
