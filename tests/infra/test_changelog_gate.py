import subprocess

from infra.changelog_gate import changed_without_entry


def commit(root, **files):
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "add", "."], cwd=root, check=True)
    subprocess.run([*git, "commit", "-qm", "x"], cwd=root, check=True)


def test_change_after_the_last_entry_is_found(tmp_path):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "CHANGELOG.md").write_text("a")
    commit(tmp_path, megapack__x="1")
    assert changed_without_entry(tmp_path) == []
    commit(tmp_path, README="1")
    assert changed_without_entry(tmp_path) == []
    commit(tmp_path, megapack__x="2")
    commit(tmp_path, README="2")
    assert changed_without_entry(tmp_path) == ["megapack/x"]
    (tmp_path / "CHANGELOG.md").write_text("b")
    assert changed_without_entry(tmp_path) == []
    commit(tmp_path)
    assert changed_without_entry(tmp_path) == []


def test_folder_without_history_passes(tmp_path):
    assert changed_without_entry(tmp_path) == []
