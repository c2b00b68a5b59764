defmodule Turnstone do
  @moduledoc """
  Whole histories in a Turnstone store, over the socket of `turnstone serve`. A message is `{kind, term}`, for example
  `{"user", "hello"}`; terms and state come back as they were. See docs/http.md for the protocol.
  """

  @doc "Connects with the server of the store in a directory."
  def open(dir) do
    {:ok, _} = Application.ensure_all_started(:inets)
    profile = :"turnstone_#{:erlang.unique_integer([:positive])}"
    {:ok, _} = :inets.start(:httpc, profile: profile)
    :ok = :httpc.set_options([ipfamily: :local, unix_socket: ~c"#{dir}/turnstone.http"], profile)
    profile
  end

  @doc "Makes messages the history of a session, and stores the difference. Without a state, that stays as it is."
  def save(db, id, messages, state \\ nil) do
    {messages, bytes} = places(messages, <<>>)
    {parts, bytes} = places(if(state == nil, do: [], else: [{"state", state}]), bytes)
    doc = %{session: id, messages: for({kind, place} <- messages, do: %{kind: kind, payload: place})}
    doc = if state == nil, do: doc, else: Map.put(doc, :state, for({name, place} <- parts, do: %{name: name, content: place}))
    with {:ok, _} <- call(db, "save", doc, bytes), do: :ok
  end

  @doc "Returns `{:ok, messages, state}`, `:not_found`, or `{:error, problem}`."
  def load(db, id) do
    with {:ok, [{%{"state" => state}, bytes} | items]} <- call(db, "load", %{session: id, parts: ["state"]}) do
      messages = for {%{"node" => n}, bytes} <- items, do: {n["kind"], term(n["payload"], bytes)}
      state = Enum.find_value(state["contents"] || [], fn p -> {:state, term(p["content"], bytes)} end)
      {:ok, messages, state && elem(state, 1)}
    end
  end

  @doc "Removes a session; one that is not there is no error."
  def delete(db, id), do: with({:ok, _} <- call(db, "delete", %{session: id}), do: :ok)

  # Puts terms behind the bytes that come behind the line, each with its place there.
  defp places(named, bytes) do
    Enum.map_reduce(named, bytes, fn {name, term}, bytes ->
      b = :erlang.term_to_binary(term)
      {{name, [byte_size(bytes), byte_size(b)]}, bytes <> b}
    end)
  end

  # A value is the place of its bytes behind the line, or short text in it. Atoms that this program does not know are refused.
  defp term([at, size], bytes), do: :erlang.binary_to_term(binary_part(bytes, at, size), [:safe])
  defp term(text, _), do: :erlang.binary_to_term(text, [:safe])

  defp call(db, name, doc, rest \\ <<>>) do
    doc = if rest == <<>>, do: doc, else: Map.put(doc, :follow, byte_size(rest))
    body = [:jiffy.encode(doc), ?\n, rest]
    headers = [{~c"Turnstone-Request", Base.encode16(:crypto.strong_rand_bytes(16)) |> String.to_charlist()}]
    request = {~c"http://turnstone/v1/#{name}", headers, ~c"application/vnd.turnstone", IO.iodata_to_binary(body)}

    case :httpc.request(:post, request, [], [body_format: :binary], db) do
      {:ok, {{_, status, _}, _, answer}} when status in 200..299 -> whole(documents(answer))
      {:ok, {{_, 404, _}, _, _}} -> :not_found
      {:ok, {_, _, problem}} -> {:error, :jiffy.decode(problem, [:return_maps])}
      {:error, reason} -> {:error, reason}
    end
  end

  # An answer of several documents is whole if the last one has "end"; else it has a problem, or was cut off.
  defp whole(documents) do
    case List.last(documents) do
      {%{"problem" => problem}, _} -> {:error, problem}
      {%{"node" => _}, _} -> {:error, :cut_off}
      {%{"state" => _}, _} -> {:error, :cut_off}
      _ -> {:ok, documents}
    end
  end

  # A document is a line of JSON, and as many bytes behind it as its member "follow" says.
  defp documents(<<>>), do: []
  defp documents(<<"\n", rest::binary>>), do: documents(rest)

  defp documents(bytes) do
    [line, rest] = :binary.split(bytes, "\n")
    doc = :jiffy.decode(line, [:return_maps])
    n = Map.get(doc, "follow", 0)
    <<follow::binary-size(n), rest::binary>> = rest
    [{doc, follow} | documents(rest)]
  end
end
