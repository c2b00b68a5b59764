# TURNSTONE_COMMAND=… elixir -r turnstone.ex -r hosts.ex hosts_test.exs
ExUnit.start(timeout: 120_000)

defmodule HostsTest do
  use ExUnit.Case

  setup do
    dir = Path.join(System.tmp_dir!(), "turnstone-#{System.os_time()}-#{:erlang.unique_integer([:positive])}")
    File.mkdir!(dir)
    on_exit(fn -> File.rm_rf!(dir) end)
    {:ok, dir: dir, server: serve(dir), db: Turnstone.open(dir)}
  end

  # Starts a server, and waits until it says where it listens.
  defp serve(dir) do
    port =
      Port.open({:spawn_executable, System.fetch_env!("TURNSTONE_COMMAND")}, [:binary, :exit_status, line: 1000, args: ["serve", "--store", dir]])

    receive do
      {^port, {:data, _}} -> :ok
      {^port, {:exit_status, status}} -> flunk("the server has ended: #{status}")
    after
      30_000 -> flunk("the server says nothing")
    end

    {:os_pid, pid} = Port.info(port, :os_pid)
    on_exit(fn -> System.cmd("kill", ["-9", "#{pid}"], stderr_to_stdout: true) end)
    {port, pid}
  end

  defp kill({port, pid}) do
    System.cmd("kill", ["-9", "#{pid}"])

    receive do
      {^port, {:exit_status, _}} -> :ok
    end
  end

  test "skillkit: a conversation is saved whole after each turn, and loaded at the start", %{dir: dir, db: db, server: server} do
    name = "my agent/1 é"
    assert SkillKit.Turnstone.load(db, name) == {:ok, []}
    assert SkillKit.Turnstone.delete(db, name) == :ok
    messages = [{"user", "héllo"}, {"assistant", %{tool_calls: [{:call, 1, <<0, 255>>}]}}]
    assert SkillKit.Turnstone.save(db, name, messages) == :ok
    longer = messages ++ for(i <- 1..50, do: {"user", {i, String.duplicate("x", 2000)}})
    assert SkillKit.Turnstone.save(db, name, longer) == :ok
    assert SkillKit.Turnstone.load(db, name) == {:ok, longer}
    kill(server)
    assert {:error, _} = SkillKit.Turnstone.load(db, name)
    serve(dir)
    assert SkillKit.Turnstone.load(db, name) == {:ok, longer}
    assert SkillKit.Turnstone.save(db, name, messages) == :ok
    assert SkillKit.Turnstone.load(db, name) == {:ok, messages}
    assert {:error, %{"status" => 422}} = SkillKit.Turnstone.save(db, "", messages)
    assert SkillKit.Turnstone.delete(db, name) == :ok
    assert SkillKit.Turnstone.load(db, name) == {:ok, []}
  end

  test "condukt: a snapshot is loaded as it was saved, missing is no error, and a server that is away is one", %{dir: dir, db: db, server: server} do
    id = ~s({:coding_agent, "/tmp/project"})
    assert Condukt.Turnstone.load(db, id) == :not_found
    snapshot = %{messages: [{"user", "do it"}, {"assistant", "done"}], model: "m", system_prompt: "be kind", cwd: "/tmp/project"}
    assert Condukt.Turnstone.save(db, id, snapshot) == :ok
    assert Condukt.Turnstone.load(db, id) == {:ok, snapshot}
    replaced = %{snapshot | messages: [], model: nil}
    assert Condukt.Turnstone.save(db, id, replaced) == :ok
    assert Condukt.Turnstone.load(db, id) == {:ok, replaced}
    assert Condukt.Turnstone.clear(db, id) == :ok
    assert Condukt.Turnstone.load(db, id) == :not_found
    assert Condukt.Turnstone.save(db, id, snapshot) == :ok
    kill(server)
    assert {:error, _} = Condukt.Turnstone.load(db, id)
    serve(dir)
    assert Condukt.Turnstone.load(db, id) == {:ok, snapshot}
  end
end
