defmodule SkillKit.Turnstone do
  @moduledoc "SkillKit's conversation store: one conversation per agent name."
  def save(db, name, messages), do: Turnstone.save(db, name, messages)
  def delete(db, name), do: Turnstone.delete(db, name)

  def load(db, name) do
    case Turnstone.load(db, name) do
      {:ok, messages, _} -> {:ok, messages}
      :not_found -> {:ok, []}
      error -> error
    end
  end
end

defmodule Condukt.Turnstone do
  @moduledoc "Condukt's session store: one snapshot of messages and options per session."
  def save(db, id, %{messages: messages} = snapshot), do: Turnstone.save(db, id, messages, Map.delete(snapshot, :messages))
  def clear(db, id), do: Turnstone.delete(db, id)

  def load(db, id) do
    with {:ok, messages, options} <- Turnstone.load(db, id), do: {:ok, Map.put(options || %{}, :messages, messages)}
  end
end
